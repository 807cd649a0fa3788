//go:build tools

// Package tool pins the nsc command line tool for scripts/nsc; nothing of it is compiled here.
package tool

import _ "github.com/nats-io/nsc/v2"
