package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// api is a client for the harness's own requests. It saves the start of a kubectl process
// per request.
type api struct{ http *http.Client }

func (c *Cluster) api() (*api, error) {
	ca, err := os.ReadFile(c.path("pki/ca.crt"))
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(c.path("pki/admin.crt"), c.path("pki/admin.key"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &api{&http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}},
	}}, nil
}

// get reads an object into out; out may be nil.
func (a *api) get(path string, out any) error { return a.do(http.MethodGet, path, nil, out) }

// create creates an object. An existing one stays unchanged.
func (a *api) create(path string, object any) error {
	err := a.do(http.MethodPost, path, object, nil)
	var status statusError
	if errors.As(err, &status) && status.code == http.StatusConflict {
		return nil
	}
	return err
}

// statusError is a response with a status other than 2xx.
type statusError struct {
	code int
	text string
}

func (e statusError) Error() string { return e.text }

func (a *api) do(method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(method, "https://"+bridgeIP+":6443"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return statusError{resp.StatusCode, fmt.Sprintf("%s %s: %s: %s", method, path, resp.Status, content)}
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(content, out)
}

// readyNodes returns the names of the nodes whose condition Ready is True.
func (a *api) readyNodes() (map[string]bool, error) {
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct {
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := a.get("/api/v1/nodes", &list); err != nil {
		return nil, err
	}
	ready := map[string]bool{}
	for _, n := range list.Items {
		for _, cond := range n.Status.Conditions {
			if cond.Type == "Ready" && cond.Status == "True" {
				ready[n.Metadata.Name] = true
			}
		}
	}
	return ready, nil
}

// leaseRenewed returns when the node's kubelet last renewed its lease.
func (a *api) leaseRenewed(n Node) (time.Time, error) {
	var lease struct {
		Spec struct{ RenewTime time.Time }
	}
	err := a.get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"+n.Name, &lease)
	return lease.Spec.RenewTime, err
}

// insecureProbe probes a component that has created its own certificate in memory, so
// that no client can know it.
func insecureProbe(url string) func(*Cluster) error {
	client := http.Client{
		Timeout:   2 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, // loopback only, and no data is sent
	}
	return func(*Cluster) error { return expectOK(client.Get(url)) }
}

// noProxyTransport ignores the environment's proxy.
var noProxyTransport = &http.Transport{}

func probe(url string) error {
	client := http.Client{Timeout: 2 * time.Second, Transport: noProxyTransport}
	return expectOK(client.Get(url))
}

func expectOK(resp *http.Response, err error) error {
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}
