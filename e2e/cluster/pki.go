package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certificateLife is the validity of the certificates. `cluster down` and `up` create new
// ones.
const certificateLife = 365 * 24 * time.Hour

// authority is a certificate authority in a directory: NAME.crt and NAME.key.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// identity is the subject of a certificate. The API server's RBAC uses the user and the
// groups of a client.
type identity struct {
	file   string
	user   string
	groups []string
	usages []x509.ExtKeyUsage
	dns    []string
	ips    []string
}

var (
	clientOnly = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	serverOnly = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	both       = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
)

// clusterIdentities are the identities that the cluster's authority certifies, apart from
// the nodes'. The built-in RBAC roles are bound to the components' names.
var clusterIdentities = []identity{
	{file: "apiserver", user: "kube-apiserver", usages: serverOnly,
		dns: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
		ips: []string{"127.0.0.1", bridgeIP, apiServerIP}},
	{file: "apiserver-kubelet", user: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}, usages: clientOnly},
	{file: "admin", user: "admin", groups: []string{"system:masters"}, usages: clientOnly},
	{file: "coredns", user: "coredns", groups: []string{"system:masters"}, usages: clientOnly},
	{file: "controller-manager", user: "system:kube-controller-manager", usages: clientOnly},
	{file: "scheduler", user: "system:kube-scheduler", usages: clientOnly},
	{file: "kube-proxy", user: "system:kube-proxy", usages: clientOnly},
}

// nodeIdentity is the identity of a kubelet as client and as server.
func nodeIdentity(n Node) identity {
	return identity{file: n.Name, user: "system:node:" + n.Name, groups: []string{"system:nodes"},
		usages: both, dns: []string{n.Name}, ips: []string{n.IP()}}
}

// ensurePKI creates missing keys, certificates and kubeconfigs.
func (c *Cluster) ensurePKI(nodes []Node) error {
	dir := c.path("pki")
	ca, err := openAuthority(dir, "ca")
	if err != nil {
		return err
	}
	front, err := openAuthority(dir, "front-proxy-ca")
	if err != nil {
		return err
	}
	all := clusterIdentities
	for _, n := range nodes {
		all = append(all[:len(all):len(all)], nodeIdentity(n))
	}
	for _, id := range all {
		if err := ca.issue(id); err != nil {
			return err
		}
		if err := c.writeKubeconfig(id.file, c.path("pki", id.file+".kubeconfig")); err != nil {
			return err
		}
	}
	return sequence(
		func() error {
			return front.issue(identity{file: "front-proxy", user: "front-proxy-client", usages: clientOnly})
		},
		func() error { return ensureServiceAccountKey(dir) },
		func() error { return c.writeKubeconfig("admin", c.kubeconfig()) },
	)
}

// openAuthority reads an authority, or creates it.
func openAuthority(dir, name string) (*authority, error) {
	file := filepath.Join(dir, name)
	if !exists(file + ".crt") {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		template := certificate(name)
		template.IsCA, template.BasicConstraintsValid = true, true
		template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
		if err := writePair(file, template, template, key, key); err != nil {
			return nil, err
		}
	}
	cert, err := readPEM(file+".crt", x509.ParseCertificate)
	if err != nil {
		return nil, err
	}
	key, err := readPEM(file+".key", x509.ParseECPrivateKey)
	return &authority{dir, cert, key}, err
}

// issue writes a key and a signed certificate for id, unless they exist.
func (a *authority) issue(id identity) error {
	file := filepath.Join(a.dir, id.file)
	if exists(file + ".crt") {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := certificate(id.user)
	template.Subject.Organization = id.groups
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = id.usages
	template.DNSNames = id.dns
	for _, ip := range id.ips {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
	}
	return writePair(file, template, a.cert, key, a.key)
}

func certificate(commonName string) *x509.Certificate {
	// The error is always nil, because crypto/rand does not return errors.
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: commonName},
		NotBefore:    time.Now().Add(-time.Hour), // the clock may be set back
		NotAfter:     time.Now().Add(certificateLife),
	}
}

// writePair writes FILE.key, then FILE.crt, so that both exist if the certificate exists.
func writePair(file string, template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return fmt.Errorf("signing %s: %w", file, err)
	}
	if err := writeECKey(file+".key", key); err != nil {
		return err
	}
	return writePEM(file+".crt", "CERTIFICATE", der, 0o644)
}

// ensureServiceAccountKey creates sa.key, which signs ServiceAccount tokens, and sa.pub.
func ensureServiceAccountKey(dir string) error {
	public := filepath.Join(dir, "sa.pub")
	if exists(public) {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := writeECKey(filepath.Join(dir, "sa.key"), key); err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	return writePEM(public, "PUBLIC KEY", der, 0o644)
}

func writeECKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "EC PRIVATE KEY", der, 0o600)
}

func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	return writeFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}

func readPEM[T any](path string, parse func([]byte) (T, error)) (T, error) {
	var none T
	b, err := os.ReadFile(path)
	if err != nil {
		return none, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return none, errors.New(path + ": not PEM")
	}
	return parse(block.Bytes)
}

// writeKubeconfig writes a kubeconfig that contains the identity's key, so that the file
// can be copied anywhere on this machine.
func (c *Cluster) writeKubeconfig(id, path string) error {
	if exists(path) {
		return nil
	}
	files := map[string][]byte{}
	for key, name := range map[string]string{"CA": "ca.crt", "Cert": id + ".crt", "Key": id + ".key"} {
		b, err := os.ReadFile(c.path("pki", name))
		if err != nil {
			return err
		}
		files[key] = b
	}
	return renderFile("kubeconfig.yaml", path, struct {
		User  string
		Files map[string][]byte
	}{id, files})
}
