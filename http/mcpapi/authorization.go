package mcpapi

import (
	"net/http"
	"strings"

	"writegate/commands/fault"
	"writegate/http/httpd"
)

// metadataPath is where a client finds out which issuer's tokens are taken (RFC 9728 part 3),
// at the root of the host and, for this endpoint, with its path behind it.
const metadataPath = "/.well-known/oauth-protected-resource"

// A resourceMetadata describes the endpoint to a client that has no token yet (RFC 9728 part
// 2; MCP 2025-06-18, Authorization).
type resourceMetadata struct {
	Resource string   `json:"resource"`
	Servers  []string `json:"authorization_servers"`
	Methods  []string `json:"bearer_methods_supported"`
	Name     string   `json:"resource_name"`
}

// origin is how the client calls the gate: as the operator says (GATE_MCP_PUBLIC_URL), or else
// by the Host of its request, which the mux has held against the gate's names.
func (d *door) origin(c *httpd.Call) string {
	if d.PublicURL != "" {
		return strings.TrimSuffix(d.PublicURL, Path)
	}
	if c.Request.TLS != nil {
		return "https://" + c.Request.Host
	}
	return "http://" + c.Request.Host
}

// metadata answers with the description of the resource that lies at path.
func (d *door) metadata(path string) httpd.Handler {
	return func(c *httpd.Call) error {
		if d.Issuer == "" {
			return fault.New(fault.NotFound, "This gate takes no tokens of an issuer (GATE_AGENT_OIDC_ISSUER). Agents show a token of the gate itself.")
		}
		c.Writer().Header().Set("Cache-Control", "no-cache")
		c.JSON(http.StatusOK, resourceMetadata{Resource: d.origin(c) + path, Servers: []string{d.Issuer}, Methods: []string{"header"}, Name: "Gate"})
		return nil
	}
}

// challenged tells a client that is refused for its credential where to get one (RFC 6750
// part 3, RFC 9728 part 5.1).
func (d *door) challenged(h httpd.Handler) httpd.Handler {
	return func(c *httpd.Call) error {
		err := h(c)
		if err == nil || d.Issuer == "" {
			return err
		}
		code := fault.CodeOf(err)
		challenge := `Bearer resource_metadata="` + d.origin(c) + metadataPath + Path + `"`
		switch {
		case code == fault.CredentialsMissing: // without a credential there is nothing wrong with one
		case code == fault.InsufficientScope:
			challenge += `, error="insufficient_scope", scope="gate:query"`
		case httpd.Status(code) == http.StatusUnauthorized:
			challenge += `, error="invalid_token", error_description="` + string(code) + `"`
		default:
			return err
		}
		c.Writer().Header().Set("WWW-Authenticate", challenge)
		return err
	}
}
