package main

import (
	"bytes"
	"embed"
	"encoding/base64"
	"fmt"
	"text/template"
)

// The configuration files of the programs, as templates of what differs from one
// state directory or node to another.
//
//go:embed conf
var confFiles embed.FS

var confTemplates = template.Must(template.New("conf").
	Option("missingkey=error").
	Funcs(template.FuncMap{"base64": base64.StdEncoding.EncodeToString}).
	ParseFS(confFiles, "conf/*"))

// render writes conf/NAME, filled in, to path. Keys may be in it, so only root reads it.
func render(name, path string, data any) error {
	b, err := rendered(name, data)
	if err != nil {
		return err
	}
	return writeFile(path, b, 0o600)
}

func rendered(name string, data any) ([]byte, error) {
	var b bytes.Buffer
	if err := confTemplates.ExecuteTemplate(&b, name, data); err != nil {
		return nil, fmt.Errorf("filling in conf/%s: %w", name, err)
	}
	return b.Bytes(), nil
}

// nodeConf is what a node's templates see.
type nodeConf struct {
	Node
	State, BridgeIP, PodNetwork, Registry, RegistryURL, PauseImage string
}

func (c *Cluster) nodeConf(n Node) nodeConf {
	return nodeConf{Node: n, State: c.Dir, BridgeIP: bridgeIP, PodNetwork: podNetwork,
		Registry: registryHost, RegistryURL: "http://" + registryAddress, PauseImage: pauseImage}
}
