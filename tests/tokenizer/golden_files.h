#pragma once
// Reads the golden files of tests/data/tokenizer and finds the large tokenizers, which are not in the
// repository.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace somnus {

// Returns the lines of tests/data/tokenizer/<name>.
std::vector<nlohmann::ordered_json> ReadGolden(const std::string& name);

// Returns the directory of "smollm2", "qwen3" or "llama3" under $SOMNUS_TOKENIZER_DIR, which may also be
// called "<model>-tokenizer"; nullopt when the variable is not set or there is no such directory.
std::optional<std::string> LargeTokenizerDirectory(const std::string& model);

}  // namespace somnus
