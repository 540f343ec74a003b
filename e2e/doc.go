// Package e2e tests queued with heavy clients, such as a browser. It is a module of its own, so that nothing of them is in the product.
package e2e
