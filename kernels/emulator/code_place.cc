#include "kernels/emulator/code_place.h"

#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

// The linker's name for the executable's first byte.
extern "C" const char __executable_start;

namespace somnus::cuda_emulated::emulator {
namespace {

// The distance between the executable's addresses in memory and in the file.
uintptr_t LoadBias() {
  uintptr_t bias = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        *static_cast<uintptr_t*>(result) = info->dlpi_addr;
        return 1;  // The first is the executable.
      },
      &bias);
  return bias;
}

}  // namespace

uint32_t CodeOffset(const void* return_address) {
  return static_cast<uint32_t>(static_cast<const char*>(return_address) - &__executable_start);
}

std::string CodePlace(uint32_t code_offset) {
  char path[1024] = {};
  const std::string unknown = absl::StrFormat("code offset %#x", code_offset);
  if (readlink("/proc/self/exe", path, sizeof path - 1) <= 0 || std::strchr(path, '\'') != nullptr)
    return unknown;
  // The access lies before its return address.
  const uintptr_t address = reinterpret_cast<uintptr_t>(&__executable_start) + code_offset - LoadBias() - 1;
  std::FILE* const tool =
      popen(absl::StrFormat("addr2line -i -e '%s' %#x 2>/dev/null", path, address).c_str(), "r");
  if (tool == nullptr) return unknown;
  // Inlined functions first, each "DIR/FILE:LINE" and perhaps " (discriminator N)".
  std::string place;
  char line[1024] = {};
  while (std::fgets(line, sizeof line, tool) != nullptr) {
    const std::string frame(absl::StripAsciiWhitespace(line));
    if (line[0] == '?' || !place.empty() || absl::StrContains(frame, "kernels/emulator/")) continue;
    place = frame.substr(0, frame.find(' '));
  }
  pclose(tool);
  return place.empty() ? unknown : place.substr(place.rfind('/') + 1);
}

}  // namespace somnus::cuda_emulated::emulator
