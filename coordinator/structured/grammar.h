#pragma once
// Grammars that constrain a sequence's text: which tokens may come next. The interface of the room: engines
// stand behind it (xgrammar_compiler.h), and who uses grammars sees nothing else of an engine.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace somnus {

enum class GrammarKind {
  kJsonSchema,     // `text` is a JSON schema
  kJsonObject,     // any JSON object; no text
  kRegex,          // `text` is a regular expression that the whole text has to match
  kChoice,         // one of `choices`
  kEbnf,           // `text` is a grammar in EBNF, whose first rule is called root
  kStructuralTag,  // `text` is a structural tag as JSON
};

// How a JSON text may look beyond what its schema says; for kJsonSchema and kJsonObject.
struct JsonLayout {
  // False: one space after each comma and colon, none elsewhere.
  bool any_whitespace = true;
  // With any_whitespace: a run of whitespace is at most this long. Nullopt: as the compiler's limits say.
  std::optional<int32_t> max_whitespace;

  friend bool operator==(const JsonLayout&, const JsonLayout&) = default;
};

// The form that a client asks for. Two equal sources have the same meaning, so a source is its own key in a
// cache.
struct GrammarSource {
  GrammarKind kind = GrammarKind::kJsonObject;
  std::string text;
  std::vector<std::string> choices;
  JsonLayout layout;

  int64_t bytes() const;
  friend bool operator==(const GrammarSource&, const GrammarSource&) = default;

  template <typename H>
  friend H AbslHashValue(H h, const GrammarSource& source) {
    const JsonLayout& layout = source.layout;
    return H::combine(std::move(h), source.kind, source.text, source.choices, layout.any_whitespace,
                      layout.max_whitespace);
  }
};

// The state of one sequence in a grammar. Belongs to one thread at a time. After any error but "not allowed"
// and "too far back" the matcher is of no further use, and each call returns the same error.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;

  // Goes on with `token`. InvalidArgument: the grammar does not allow the token here, and nothing has
  // changed.
  virtual absl::Status Accept(int32_t token) = 0;
  // Takes the last `count` accepted tokens back, at most kMaxSpeculativeTokens (proto/limits.h).
  // InvalidArgument: fewer have been accepted, or more are not kept.
  virtual absl::Status Rollback(int64_t count) = 0;
  // Sets bit t % 32 of word t / 32 where token t may come next, and clears the others. `mask` has
  // MaskWords(rows) words. End tokens may come where the text is complete. FailedPrecondition: no token may
  // come, as the vocabulary lacks the bytes that the grammar asks for, or as an end token has been accepted.
  virtual absl::Status FillMask(absl::Span<uint32_t> mask) = 0;
  // The only text that may come next, up to `max_bytes` bytes and possibly cut within a character; empty
  // where there is a choice. Costs one mask for each byte, and begins no mask after `max_time`. The next
  // FillMask has the first mask for nothing.
  virtual absl::StatusOr<std::string> ForcedText(int64_t max_bytes, absl::Duration max_time) = 0;

  // The text so far is whole. More may follow all the same.
  virtual bool IsComplete() const = 0;
  // An end token has been accepted.
  virtual bool IsTerminated() const = 0;
  // A matcher in the same state that goes on by itself. Costs memory and time in proportion to the text so
  // far.
  virtual absl::StatusOr<std::unique_ptr<GrammarMatcher>> Fork() const = 0;
};

// A grammar, prepared for a vocabulary. Immutable and thread safe.
class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;
  // A matcher at the start of a text, which keeps what it needs of this object alive.
  virtual absl::StatusOr<std::unique_ptr<GrammarMatcher>> NewMatcher() const = 0;
  // Makes masks ahead, for as long as a compile may take; a matcher makes the masks that are missing.
  // Matchers may run meanwhile. Returns whether another call would make more masks within the compiler's
  // limits.
  virtual bool MakeMasks() const = 0;
  // Memory in use, which grows with the masks.
  virtual int64_t bytes() const = 0;
};

// Prepares grammars for one vocabulary. Thread safe.
class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;
  // Takes milliseconds to seconds, within the compiler's limits. InvalidArgument: the source is wrong, or a
  // part of it cannot be enforced. ResourceExhausted, DeadlineExceeded: it takes more memory or time than the
  // limits allow.
  virtual absl::StatusOr<std::shared_ptr<const CompiledGrammar>> Compile(const GrammarSource& source) = 0;
};

// Words of a mask of `rows` rows of logits.
constexpr int64_t MaskWords(int64_t rows) { return (rows + 31) / 32; }

}  // namespace somnus
