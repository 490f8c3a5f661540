#pragma once
// Places in the executable's code, for messages.

#include <cstdint>
#include <string>

namespace somnus::cuda_emulated::emulator {

// The distance of a return address from the executable's first byte.
uint32_t CodeOffset(const void* return_address);
// "gemv.cu:124", by addr2line and the line numbers of the compiled code; the offset where addr2line or the
// numbers are missing. Inlined functions of the emulator are passed over in favour of their caller. Slow.
std::string CodePlace(uint32_t code_offset);

}  // namespace somnus::cuda_emulated::emulator
