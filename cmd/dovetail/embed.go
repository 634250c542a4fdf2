package main

import (
	// Policies ask for the time in zones. What they answer must not depend on the zones
	// that a machine knows, and the container image has no files of a system.
	_ "time/tzdata"

	// Certificate authorities for policies that are fetched over HTTPS, where the system
	// has none: those of the system, SSL_CERT_FILE and SSL_CERT_DIR win.
	_ "golang.org/x/crypto/x509roots/fallback"
)
