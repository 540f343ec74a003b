package ui

// A Pager leads to other pages of a list by their queries; empty: there is none.
type Pager struct{ First, Next string }

// Confirm is a question before something that cannot be undone.
type Confirm struct {
	Question, Consequence, Button string
	Action, Back                  string // paths under /ui/
	Fields                        []Hidden
}

// Hidden is a field of a form that nobody sees.
type Hidden struct{ Name, Value string }
