#include "tests/checkpoint/fuzz/entries.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  somnus::FuzzPieces(data, size).IgnoreError();
  return 0;
}
