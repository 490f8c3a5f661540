#pragma once
// A strict pull parser for the JSON that can be large or hostile: safetensors headers, vocabularies, merges.
// The parser copies only strings, shows duplicate keys (a DOM hides them), and bounds its memory by the
// nesting limit. Small documents go through the DOM in json_file.h. Grammar: RFC 8259; strings must be valid
// UTF-8.
//
// After the first error every call returns false and error() names the error and its byte. Ownership: `text`
// must outlive the reader. Thread safety: none.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

// `text` without a leading UTF-8 byte order mark, which some editors write.
absl::string_view WithoutByteOrderMark(absl::string_view text);

class JsonReader {
 public:
  enum class Kind { kObject, kArray, kString, kNumber, kBool, kNull, kInvalid };
  static constexpr int kMaxDepth = 64;

  explicit JsonReader(absl::string_view text) : text_(text) {}

  // The kind of the next value; consumes only white space.
  Kind Peek();
  // Objects: BeginObject, then NextKey until it returns false (at "}" or on an error), reading one value
  // after each.
  bool BeginObject();
  bool NextKey(std::string* key);
  // Arrays: BeginArray, then NextElement until it returns false, reading one value after each.
  bool BeginArray();
  bool NextElement();
  bool ReadString(std::string* value);
  // An integer without fraction or exponent that fits int64_t.
  bool ReadInt(int64_t* value);
  // Skips any value; sets `raw`, if not null, to its text.
  bool Skip(absl::string_view* raw = nullptr);
  // True when only white space is left.
  bool AtEnd();

  bool ok() const { return error_.empty(); }
  const std::string& error() const { return error_; }
  bool Fail(absl::string_view reason);

 private:
  void SkipSpace();
  bool Expect(char c);
  bool Begin(char open);
  bool NextItem(char close);
  bool SkipScalar();
  bool ReadEscape(std::string* value);
  bool ReadHex4(uint32_t* value);
  bool SkipNumber();

  absl::string_view text_;
  size_t pos_ = 0;
  int depth_ = 0;
  bool fresh_ = false;  // just after "{" or "[": no comma comes before the next item
  std::string error_;
  std::string scratch_;
};

}  // namespace somnus
