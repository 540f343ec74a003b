// Package seal keeps secrets that lie in the database from whoever reads the database: it encrypts them under keys that are elsewhere. Reseal encrypts
// anew those that were sealed under an older key.
package seal
