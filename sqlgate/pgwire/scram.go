package pgwire

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"writegate/sqlgate/scram"
)

// Mechanisms of SASL as PostgreSQL names them.
const (
	mechanism     = "SCRAM-SHA-256"
	mechanismPlus = "SCRAM-SHA-256-PLUS"
)

// bindingType is the one channel binding that is offered (RFC 5929 part 4).
const bindingType = "tls-server-end-point"

const nonceLen = 18

// errScram is every way in which an exchange can fail; the client is told of one.
var errScram = errors.New("the SCRAM exchange failed")

func scramError(what string) error { return fmt.Errorf("%w: %s", errScram, what) }

// A scramExchange is the server's side of one login (RFC 5802, RFC 7677). The
// user is the greeting's: PostgreSQL's clients leave the name in the exchange
// empty, and what stands there is not read.
type scramExchange struct {
	verifier scram.Verifier
	others   []scram.Verifier // with the same salt: another password fits, too
	known    bool             // there is such a user; else every proof is wrong
	binding  []byte           // of the TLS channel; nil: -PLUS is not offered
	plus     bool             // the client chose -PLUS
	fits     int              // which of the verifiers the proof fits: 0 is the first, then the others

	gs2   string // header of the client's first message
	bare  string // the rest of it
	nonce string // ours, from begin on both
	first string // the server's first message
}

func newScram(v scram.Verifier, known bool, binding []byte) *scramExchange {
	return &scramExchange{verifier: v, known: known, binding: binding, nonce: base64.StdEncoding.EncodeToString(randomBytes(nonceLen))}
}

// mechanisms are those that are offered, the stronger first.
func (x *scramExchange) mechanisms() []string {
	if x.binding != nil {
		return []string{mechanismPlus, mechanism}
	}
	return []string{mechanism}
}

// begin takes the client's first message and gives the server's.
func (x *scramExchange) begin(chosen string, message []byte) ([]byte, error) {
	x.plus = chosen == mechanismPlus && x.binding != nil
	if !x.plus && chosen != mechanism {
		return nil, scramError("a mechanism that was not offered")
	}
	flag, rest, ok := strings.Cut(string(message), ",")
	authzid, bare, ok2 := strings.Cut(rest, ",")
	if !ok || !ok2 || authzid != "" || !x.flagFits(flag) {
		return nil, scramError("the header or its channel binding")
	}
	x.gs2, x.bare = flag+",,", bare
	attributes := strings.Split(bare, ",")
	if len(attributes) < 2 || !strings.HasPrefix(attributes[0], "n=") || !strings.HasPrefix(attributes[1], "r=") {
		return nil, scramError("the first message") // an extension (m=) in front is refused too, as it must be
	}
	theirs := attributes[1][2:]
	if theirs == "" || strings.ContainsFunc(theirs, func(c rune) bool { return c < '!' || c > '~' }) {
		return nil, scramError("the nonce")
	}
	x.nonce = theirs + x.nonce
	x.first = fmt.Sprintf("r=%s,s=%s,i=%d", x.nonce, base64.StdEncoding.EncodeToString(x.verifier.Salt), x.verifier.Iterations)
	return []byte(x.first), nil
}

// flagFits holds the client's word on channel binding against what was offered:
// "y" says that the server offers none, so where it does somebody in between
// took the offer away.
func (x *scramExchange) flagFits(flag string) bool {
	switch flag {
	case "n":
		return !x.plus
	case "y":
		return !x.plus && x.binding == nil
	}
	return x.plus && flag == "p="+bindingType
}

// finish takes the client's proof and gives the server's own.
func (x *scramExchange) finish(message []byte) ([]byte, error) {
	text := string(message)
	at := strings.LastIndex(text, ",p=")
	if at < 0 {
		return nil, scramError("no proof")
	}
	withoutProof := text[:at]
	proof, err := base64.StdEncoding.Strict().DecodeString(text[at+3:])
	if err != nil || len(proof) != sha256.Size {
		return nil, scramError("the form of the proof")
	}
	attributes := strings.Split(withoutProof, ",")
	if len(attributes) < 2 || attributes[0] != "c="+x.channel() || attributes[1] != "r="+x.nonce {
		return nil, scramError("the channel or the nonce")
	}
	said := []string{x.bare, ",", x.first, ",", withoutProof}
	all := slices.Concat([]scram.Verifier{x.verifier}, x.others)
	x.fits = slices.IndexFunc(all, func(v scram.Verifier) bool {
		key := scram.MAC(v.StoredKey[:], said...)
		subtle.XORBytes(key, key, proof)
		stored := sha256.Sum256(key)
		return hmac.Equal(stored[:], v.StoredKey[:])
	})
	if x.fits < 0 || !x.known {
		return nil, scramError("a wrong password or an unknown user")
	}
	signature := scram.MAC(all[x.fits].ServerKey[:], said...)
	return []byte("v=" + base64.StdEncoding.EncodeToString(signature)), nil
}

// channel is what the client must show of the channel it speaks in.
func (x *scramExchange) channel() string {
	data := []byte(x.gs2)
	if x.plus {
		data = append(data, x.binding...)
	}
	return base64.StdEncoding.EncodeToString(data)
}
