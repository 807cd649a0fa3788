"""Options that commands share: parsed to values, with connection and repository opened by them."""
