package client

import "os"

// ServeExample returns the URL of the server that an example calls.
func ServeExample() (url string, stop func()) { return os.Getenv(urlEnv), func() {} }
