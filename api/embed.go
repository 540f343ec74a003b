// Package api holds the contract of the HTTP API.
package api

import _ "embed"

// OpenAPI is openapi.yaml: every path, parameter, answer and error of the API, in OpenAPI 3.1.
//
//go:embed openapi.yaml
var OpenAPI []byte
