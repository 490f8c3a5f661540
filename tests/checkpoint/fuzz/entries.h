#pragma once
// One entry per parser of foreign files. Each takes any bytes, and must neither crash nor allocate beyond a
// small multiple of the bytes. libFuzzer drives the entries (tools/fuzz.sh), and so does a plain test with
// seeded mutations.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace somnus {

// Returns the parser's status: Ok for a good file.
absl::Status FuzzSafetensors(const uint8_t* data, size_t size);
absl::Status FuzzGguf(const uint8_t* data, size_t size);
// config.json, then after a NUL generation_config.json.
absl::Status FuzzConfig(const uint8_t* data, size_t size);
// tokenizer.json, then after a NUL tokenizer_config.json.
absl::Status FuzzTokenizer(const uint8_t* data, size_t size);

// tokenizer.model.
absl::Status FuzzPieces(const uint8_t* data, size_t size);

}  // namespace somnus
