#pragma once
// Pieces of JSON text. Pure functions; thread safe.

#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

inline bool IsJsonSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Appends a byte of a string's text, escaped where JSON asks for that. Bytes above 0x7F stay as they are.
void AppendEscaped(char c, std::string* json);
// Returns `text` as a JSON string, with its quotes.
std::string Quoted(absl::string_view text);
// Whether `text` is a number by JSON's grammar.
bool IsJsonNumber(absl::string_view text);
// Whether `text` is one JSON value, nested at most `max_depth` deep.
bool IsJson(absl::string_view text, int max_depth);

}  // namespace somnus
