//go:build tools

// Package tool pins the age command line tool for scripts/age; nothing of it is compiled here.
package tool

import _ "filippo.io/age/cmd/age"
