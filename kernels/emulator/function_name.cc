// Names of kernels in messages, from the symbols of the executable: kernels are mostly local symbols, which
// dladdr does not know.

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/emulator/grid.h"

namespace somnus::cuda_emulated::emulator {
namespace {

// The bytes of the file, which are read once.
const std::vector<char>& Contents(const std::string& path) {
  static std::mutex mutex;
  static auto* const files = new std::map<std::string, std::vector<char>>;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = files->try_emplace(path);
  if (is_new) {
    std::ifstream file(path, std::ios::binary);
    entry->second.assign(std::istreambuf_iterator<char>(file), {});
  }
  return entry->second;
}

// The mangled name of the function at `offset` of the file; empty when there is none.
std::string SymbolAt(const char* path, uint64_t offset) {
  const std::vector<char>& bytes = Contents(path);
  const auto inside = [&](uint64_t begin, uint64_t size) {
    return begin <= bytes.size() && size <= bytes.size() - begin;
  };
  Elf64_Ehdr header;
  if (!inside(0, sizeof header)) return "";
  std::memcpy(&header, bytes.data(), sizeof header);
  if (!inside(header.e_shoff, uint64_t{header.e_shnum} * sizeof(Elf64_Shdr))) return "";
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  std::memcpy(sections.data(), bytes.data() + header.e_shoff, sections.size() * sizeof(Elf64_Shdr));
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const Elf64_Shdr& names = sections[section.sh_link];
    if (!inside(section.sh_offset, section.sh_size) || !inside(names.sh_offset, names.sh_size)) return "";
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= section.sh_size; at += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      std::memcpy(&symbol, bytes.data() + section.sh_offset + at, sizeof symbol);
      if (symbol.st_value != offset || ELF64_ST_TYPE(symbol.st_info) != STT_FUNC) continue;
      if (symbol.st_name >= names.sh_size) return "";
      return std::string(bytes.data() + names.sh_offset + symbol.st_name);
    }
  }
  return "";
}

}  // namespace

std::string FunctionName(const void* function) {
  Dl_info info{};
  std::string mangled;
  if (function != nullptr && dladdr(function, &info) != 0) {
    const uint64_t base = reinterpret_cast<uint64_t>(info.dli_fbase);
    mangled = SymbolAt(info.dli_fname, reinterpret_cast<uint64_t>(function) - base);
    if (mangled.empty()) mangled = SymbolAt("/proc/self/exe", reinterpret_cast<uint64_t>(function) - base);
  }
  if (mangled.empty()) return absl::StrFormat("at %p", function);
  int status = 0;
  char* const plain = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  std::string name = plain == nullptr ? mangled : plain;
  std::free(plain);
  // Without the parts that every kernel shares: the result, the namespaces and the parameters.
  for (const std::string drop : {"void ", "somnus::cuda_emulated::", "(anonymous namespace)::"}) {
    for (size_t at; (at = name.find(drop)) != std::string::npos;) name.erase(at, drop.size());
  }
  if (const size_t at = name.rfind(")"); at != std::string::npos && at + 1 == name.size()) {
    int depth = 0;
    for (size_t i = name.size(); i-- > 0;) {
      depth += name[i] == ')' ? 1 : name[i] == '(' ? -1 : 0;
      if (depth == 0) return name.substr(0, i);
    }
  }
  return name;
}

}  // namespace somnus::cuda_emulated::emulator
