//go:build tools

// Package tool pins the nats command line tool for scripts/natscli; nothing of it is compiled here.
package tool

import _ "github.com/nats-io/natscli/nats"
