//go:build tools

// Package tool pins a nats-server that pip does not have for scripts/servers; nothing of it is compiled here.
package tool

import _ "github.com/nats-io/nats-server/v2"
