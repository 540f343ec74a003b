package match

import (
	"errors"
	"fmt"
	"strings"
)

const (
	// MaxTopicLength bounds a topic, and a pattern of topics, in bytes.
	MaxTopicLength = 255
	// MaxTopicWords bounds their words.
	MaxTopicWords = 8

	anyWord  = "*"
	anyWords = "**"

	// ownWord is the first word of the service's own topics. They are about everybody's queues, so only a pattern that names this word stands for them.
	ownWord = "queued"
)

// isOwn reports whether a topic of these words is one of the service's own.
func isOwn(words []string) bool { return len(words) > 1 && words[0] == ownWord }

// ValidTopic returns an error that says what was expected unless the text is a topic: 1–255 of A–Z a–z 0–9 . _ : -, up to 8 words with dots between.
func ValidTopic(text string) error {
	_, err := splitTopic(text, false)
	return err
}

// A topicPattern is a topic in which a word may be *, and the last one **.
type topicPattern struct {
	text  string
	words []string // without a last **
	tail  bool     // a last **: one or more words
}

func parseTopicPattern(text string) (topicPattern, error) {
	words, err := splitTopic(text, true)
	if err != nil {
		return topicPattern{}, err
	}
	pattern := topicPattern{text: text, words: words}
	if last := len(words) - 1; words[last] == anyWords {
		pattern.words, pattern.tail = words[:last], true
	}
	return pattern, nil
}

func splitTopic(text string, pattern bool) ([]string, error) {
	what := "topic"
	if pattern {
		what = "topic pattern"
	}
	if len(text) == 0 || len(text) > MaxTopicLength {
		return nil, fmt.Errorf("a %s of %d bytes; expected 1 to %d", what, len(text), MaxTopicLength)
	}
	words := strings.Split(text, ".")
	if len(words) > MaxTopicWords {
		return nil, fmt.Errorf("a %s of %d words; expected at most %d", what, len(words), MaxTopicWords)
	}
	for i, word := range words {
		switch {
		case word == "":
			return nil, fmt.Errorf("a %s with an empty word; expected words with single dots between, such as order.placed", what)
		case pattern && word == anyWord:
		case pattern && word == anyWords:
			if i < len(words)-1 {
				return nil, errors.New("** before the end; expected it as the last word only")
			}
		case pattern && strings.Contains(word, "*"):
			return nil, fmt.Errorf("%q has a * beside other characters; expected * or ** as a whole word", word)
		default:
			for _, c := range []byte(word) {
				if !topicByte(c) {
					return nil, fmt.Errorf("the word %q of a %s; expected A–Z, a–z, 0–9, _, : and - only", word, what)
				}
			}
		}
	}
	return words, nil
}

func topicByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == ':' || c == '-'
}

// matches takes the words of a topic.
func (p *topicPattern) matches(words []string) bool {
	if isOwn(words) && (len(p.words) == 0 || p.words[0] != ownWord) {
		return false
	}
	if p.tail {
		if len(words) <= len(p.words) {
			return false
		}
	} else if len(words) != len(p.words) {
		return false
	}
	for i, word := range p.words {
		if word != anyWord && word != words[i] {
			return false
		}
	}
	return true
}

// appendWords splits a topic. A text without words, or with more than a topic can have, has none: no pattern matches it.
func appendWords(words []string, topic string) []string {
	start := len(words)
	for topic != "" && len(words)-start < MaxTopicWords {
		word, rest, more := strings.Cut(topic, ".")
		words = append(words, word)
		if !more {
			return words
		}
		topic = rest
	}
	return words[:start]
}

// A topicNode is a node of the trie of topic patterns that are access predicates. A topic of 8 words leads to at most 2^8 nodes, however many
// patterns there are.
type topicNode struct {
	words map[string]*topicNode
	any   *topicNode
	end   int32 // the predicate of the pattern that ends here, or none
	tail  int32 // the predicate of the pattern that goes on with **, or none
}

func newTopicNode() *topicNode {
	return &topicNode{end: none, tail: none}
}

func (n *topicNode) add(pattern *topicPattern, predicate int32) {
	for _, word := range pattern.words {
		next := n.any
		if word != anyWord {
			next = n.words[word]
		}
		if next == nil {
			next = newTopicNode()
			switch {
			case word == anyWord:
				n.any = next
			case n.words == nil:
				n.words = map[string]*topicNode{word: next}
			default:
				n.words[word] = next
			}
		}
		n = next
	}
	if pattern.tail {
		n.tail = predicate
	} else {
		n.end = predicate
	}
}

// TopicWithin reports whether the topic, or every topic that the pattern stands for, is one that the pattern allowed stands for.
func TopicWithin(pattern, allowed string) bool {
	if own := ownWord + "."; strings.HasPrefix(pattern, own) && !strings.HasPrefix(allowed, own) {
		return false
	}
	for {
		word, rest, more := strings.Cut(pattern, ".")
		allowedWord, allowedRest, allowedMore := strings.Cut(allowed, ".")
		switch {
		case allowedWord == anyWords:
			return word != ""
		case word == anyWords, allowedWord != anyWord && allowedWord != word, more != allowedMore:
			return false
		case !more:
			return word != ""
		}
		pattern, allowed = rest, allowedRest
	}
}

// CheckTopicPattern returns an error that says what was expected unless the text is a pattern of topics.
func CheckTopicPattern(text string) error {
	_, err := parseTopicPattern(text)
	return err
}
