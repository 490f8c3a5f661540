#include "tests/tokenizer/golden_files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace somnus {

std::vector<nlohmann::ordered_json> ReadGolden(const std::string& name) {
  std::ifstream file("tests/data/tokenizer/" + name);
  EXPECT_TRUE(file.good()) << name;
  std::vector<nlohmann::ordered_json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::ordered_json::parse(line));
  return lines;
}

std::optional<std::string> LargeTokenizerDirectory(const std::string& model) {
  const char* root = std::getenv("SOMNUS_TOKENIZER_DIR");
  if (root == nullptr) return std::nullopt;
  for (const std::string& name : {model, model + "-tokenizer"}) {
    const std::string directory = std::string(root) + "/" + name;
    if (std::filesystem::exists(directory + "/tokenizer.json")) return directory;
  }
  return std::nullopt;
}

}  // namespace somnus
