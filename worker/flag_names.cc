#include "worker/flag_names.h"

#include <algorithm>

namespace somnus {

std::vector<char*> NormalizeFlagNames(int argc, char** argv, std::vector<std::string>* storage) {
  storage->assign(argv, argv + argc);
  bool flags = true;  // until a bare "--"
  for (int i = 1; i < argc; ++i) {
    std::string& word = (*storage)[i];
    if (word == "--") flags = false;
    if (!flags || word.rfind("--", 0) != 0) continue;
    std::replace(word.begin() + 2, word.begin() + std::min(word.find('='), word.size()), '-', '_');
  }
  std::vector<char*> out;
  for (std::string& word : *storage) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace somnus
