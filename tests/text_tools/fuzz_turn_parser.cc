// libFuzzer target.

#include <cstddef>
#include <cstdint>

#include "tests/text_tools/fuzz_entries.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  somnus::FuzzTurnParser({reinterpret_cast<const char*>(data), size});
  return 0;
}
