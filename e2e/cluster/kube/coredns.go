package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

// The plugins this CoreDNS knows, in the order in which a query passes them. A
// plugin that is imported but not listed here is an unknown directive.
func init() {
	dnsserver.Directives = []string{"bind", "ready", "errors", "kubernetes"}
}
