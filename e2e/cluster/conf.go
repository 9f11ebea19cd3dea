package main

import (
	"bytes"
	"embed"
	"encoding/base64"
	"fmt"
	"text/template"
)

// The programs' configuration files. They are templates, because they depend on the
// state directory and the node.
//
//go:embed conf
var confFiles embed.FS

var confTemplates = template.Must(template.New("conf").
	Option("missingkey=error").
	Funcs(template.FuncMap{"base64": base64.StdEncoding.EncodeToString}).
	ParseFS(confFiles, "conf/*"))

// renderFile fills in conf/NAME and writes it to path. Only root may read the file,
// because it may contain keys.
func renderFile(name, path string, data any) error {
	b, err := renderTemplate(name, data)
	if err != nil {
		return err
	}
	return writeFile(path, b, 0o600)
}

func renderTemplate(name string, data any) ([]byte, error) {
	var b bytes.Buffer
	if err := confTemplates.ExecuteTemplate(&b, name, data); err != nil {
		return nil, fmt.Errorf("filling in conf/%s: %w", name, err)
	}
	return b.Bytes(), nil
}

// nodeConf is the data of a node's templates.
type nodeConf struct {
	Node
	State, BridgeIP, PodNetwork, Registry, RegistryURL, PauseImage string
}

func (c *Cluster) nodeConf(n Node) nodeConf {
	return nodeConf{Node: n, State: c.Dir, BridgeIP: bridgeIP, PodNetwork: podNetwork,
		Registry: registryHost, RegistryURL: "http://" + registryAddress, PauseImage: pauseImage}
}
