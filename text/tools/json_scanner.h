#pragma once
// Finds the end of one JSON value, byte by byte. The scanner is no validator: it follows strings and
// brackets, and stops at bytes that no JSON has outside of strings. Not thread safe.

#include <string>

namespace somnus {

class JsonScanner {
 public:
  enum class Result {
    kMore,
    kDone,        // the byte is the value's last
    kDoneBefore,  // the value has ended, and the byte follows it
    kBad,         // the byte does not continue the value, or nests too deep
  };

  explicit JsonScanner(int max_depth) : max_depth_(max_depth) {}

  // Reads the next byte, and appends the value's text to `out`. White space before the value is left out;
  // control characters in strings, which models write in spite of JSON's grammar, become escapes.
  Result Read(char c, std::string* out);
  bool done() const { return at_ == At::kDone; }
  bool in_string() const { return at_ == At::kString || at_ == At::kEscape; }
  // The characters that close the open brackets; empty inside of a string, and after a comma or colon.
  std::string Missing() const;

 private:
  enum class At { kStart, kBetween, kString, kEscape, kBare, kDone };
  Result ReadString(char c, std::string* out);
  Result ReadOutside(char c, std::string* out);
  Result Close();

  int max_depth_;
  At at_ = At::kStart;
  std::string open_;  // the brackets that close what is open, outermost first
  char last_ = 0;     // the last byte that is not white space
};

}  // namespace somnus
