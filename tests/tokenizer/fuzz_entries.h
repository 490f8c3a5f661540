#pragma once
// Each function gives one input to a parser, and must return for any bytes. The libFuzzer targets and
// mutation_test use them.

#include "absl/strings/string_view.h"

namespace somnus {

// Compiles the bytes as a chat template and renders it over a conversation, under small limits.
void FuzzChatTemplate(absl::string_view bytes);
// Encodes the bytes and decodes the ids, whole and streamed; aborts when the two differ or are not UTF-8.
void FuzzTokenizer(absl::string_view bytes);
// Compiles the bytes up to the first zero as a pattern and runs it over the rest.
void FuzzRegex(absl::string_view bytes);

}  // namespace somnus
