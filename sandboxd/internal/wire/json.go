package wire

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"unicode/utf8"
)

// JSON answers with v. A nil v answers with the status alone.
func JSON(w http.ResponseWriter, status int, v any) {
	if v == nil {
		w.WriteHeader(status)
		return
	}
	body, err := json.Marshal(v)
	if err != nil {
		Fail(w, nil, Internal(err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// ReadJSON reads a JSON body of at most limit bytes into v. A body that is not UTF-8
// is refused rather than changed: Go's decoder would put U+FFFD in place of it.
func ReadJSON(w http.ResponseWriter, r *http.Request, limit int64, v any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		var tooBig *http.MaxBytesError
		if errors.As(err, &tooBig) {
			return err
		}
		return Invalid("body", "the body was cut short: "+err.Error())
	}
	return DecodeJSON(body, v)
}

// DecodeJSON decodes one strict UTF-8 JSON document; errors name the field.
func DecodeJSON(body []byte, v any) error {
	if !utf8.Valid(body) {
		return Invalid("body", "the body is not valid UTF-8")
	}
	if loneSurrogate(body) {
		return Invalid("body", "the body holds an unpaired \\u surrogate, which no byte string stands for")
	}
	err := json.Unmarshal(body, v)
	var typed *json.UnmarshalTypeError
	if errors.As(err, &typed) {
		return Invalid(typed.Field, "got a JSON "+typed.Value+" where "+typed.Type.String()+" is due")
	}
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	if err != nil {
		return Invalid("body", "not a JSON document of the due shape: "+err.Error())
	}
	return nil
}

// loneSurrogate tells whether a \u escape names half of a surrogate pair alone.
func loneSurrogate(body []byte) bool {
	for i := 0; i+1 < len(body); i++ {
		if body[i] != '\\' {
			continue
		}
		if body[i+1] != 'u' {
			i++
			continue
		}
		unit := hexUnit(body, i)
		switch {
		case unit >= 0xDC00 && unit <= 0xDFFF:
			return true
		case unit >= 0xD800 && unit <= 0xDBFF:
			low := hexUnit(body, i+6)
			if low < 0xDC00 || low > 0xDFFF {
				return true
			}
			i += 11
		default:
			i += 5
		}
	}
	return false
}

// hexUnit reads "\uXXXX" at i, or -1.
func hexUnit(body []byte, i int) int {
	if i+6 > len(body) || body[i] != '\\' || body[i+1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(body[i+2:i+6]), 16, 32)
	if err != nil {
		return -1
	}
	return int(n)
}
