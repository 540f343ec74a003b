// Package e2e tests queued with heavy clients, such as a browser. It is a module of its own, so that nothing of them is in the product.
//
// The tests of the pages at /ui/ drive a headless Chromium. Each page there is, by the routes of internal/http/pages, is opened full and empty, at 1280, 768 and 360
// pixels, in light and dark, and audit.js says what is wrong with it; each form is sent with scripts turned off. Whatever the browser reports, such as an error of a
// script or what the Content-Security-Policy has forbidden, fails the test. The pages of cells, which a gateway in front of several has, have a test of their own.
//
// QUEUED_E2E_SCREENSHOTS names a folder in which these tests keep a picture of each page with each look, as full/, empty/, bare/ and forms/; .ci/run sets it to
// bin/screenshots. QUEUED_E2E_PICTURES names that of the pictures of docs/dashboard.md: see make pictures.
package e2e
