package main

import (
	"crypto/x509"
	"encoding/base64"
	"net"
	"os"
	"testing"

	"sigs.k8s.io/yaml"
)

func testCluster(t *testing.T) *Cluster {
	t.Helper()
	src, err := sources()
	must(t, err)
	c := &Cluster{Dir: t.TempDir(), Src: src}
	must(t, c.createDirs())
	return c
}

func TestCertificatesAreValidForTheirUsagesOnly(t *testing.T) {
	c := testCluster(t)
	n := c.node(2)
	must(t, c.ensurePKI([]Node{c.node(1), n}))
	ca, err := readPEM(c.path("pki/ca.crt"), x509.ParseCertificate)
	must(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	for _, id := range append(clusterIdentities[:len(clusterIdentities):len(clusterIdentities)], nodeIdentity(n)) {
		cert, err := readPEM(c.path("pki", id.file+".crt"), x509.ParseCertificate)
		must(t, err)
		for _, usage := range both {
			_, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}})
			wanted := false
			for _, u := range id.usages {
				wanted = wanted || u == usage
			}
			if (err == nil) != wanted {
				t.Errorf("%s: usage %d: wanted %v, got %v", id.file, usage, wanted, err)
			}
		}
		if cert.Subject.CommonName != id.user {
			t.Errorf("%s has the user %s", id.file, cert.Subject.CommonName)
		}
	}
}

func TestServerCertificatesContainTheAddressesThatClientsUse(t *testing.T) {
	c := testCluster(t)
	n := c.node(1)
	must(t, c.ensurePKI([]Node{n}))
	for file, names := range map[string][]string{
		"apiserver": {bridgeIP, apiServerIP, "kubernetes.default.svc", "localhost"},
		n.Name:      {n.IP(), n.Name},
	} {
		cert, err := readPEM(c.path("pki", file+".crt"), x509.ParseCertificate)
		must(t, err)
		for _, name := range names {
			if ip := net.ParseIP(name); ip != nil {
				name = "[" + name + "]" // the form of an address for VerifyHostname
			}
			must(t, cert.VerifyHostname(name))
		}
	}
}

func TestSecondUpKeepsTheKeysAndAddsOnlyNewNodes(t *testing.T) {
	c := testCluster(t)
	must(t, c.ensurePKI([]Node{c.node(1)}))
	before, err := os.ReadFile(c.path("pki/n1.key"))
	must(t, err)
	must(t, c.ensurePKI([]Node{c.node(1), c.node(2)}))
	after, err := os.ReadFile(c.path("pki/n1.key"))
	must(t, err)
	if string(before) != string(after) {
		t.Error("the key of n1 was replaced")
	}
	if !exists(c.path("pki/n2.crt")) {
		t.Error("n2 has no certificate")
	}
}

func TestKubeconfigContainsTheAdminsCertificateAndIsPrivate(t *testing.T) {
	c := testCluster(t)
	must(t, c.ensurePKI(nil))
	var config struct {
		Users []struct {
			User map[string]string `json:"user"`
		} `json:"users"`
	}
	b, err := os.ReadFile(c.kubeconfig())
	must(t, err)
	must(t, yaml.Unmarshal(b, &config))
	want, err := os.ReadFile(c.path("pki/admin.crt"))
	must(t, err)
	if config.Users[0].User["client-certificate-data"] != base64.StdEncoding.EncodeToString(want) {
		t.Error("the kubeconfig has another certificate")
	}
	info, err := os.Stat(c.kubeconfig())
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("its mode is %v", info.Mode())
	}
}
