package wire

import "strings"

const (
	idLimit   = 128
	idLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
)

// IsID tells whether text is 1-128 of [A-Za-z0-9._-]. (A regular expression would cost a
// millisecond at every start, that of a supervisor too.)
func IsID(text string) bool {
	return text != "" && len(text) <= idLimit && strings.Trim(text, idLetters) == ""
}
