#include "tests/model/golden.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tests/runner/mini_engine.h"
#include "tests/runner/rank_group.h"

namespace somnus {
namespace {

struct Case {
  std::vector<int32_t> prompt, tokens, ambiguous;
  std::vector<double> prompt_logprobs;  // of prompt tokens 1, 2, ...
  std::vector<double> gaps;             // of tokens; or none
};

absl::StatusOr<std::vector<Case>> ReadCases(const std::string& folder) {
  std::ifstream file(folder + "/expected.json");
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::NotFoundError(absl::StrCat(folder, "/expected.json cannot be read"));
  std::vector<Case> cases;
  for (const nlohmann::json& j : json.at("cases")) {
    Case c;
    c.prompt = j.at("prompt").get<std::vector<int32_t>>();
    c.tokens = j.at("tokens").get<std::vector<int32_t>>();
    c.ambiguous = j.at("ambiguous").get<std::vector<int32_t>>();
    c.gaps = j.value("gaps", std::vector<double>());
    for (size_t i = 1; i < c.prompt.size(); ++i)
      c.prompt_logprobs.push_back(j.at("prompt_logprobs").at(i).get<double>());
    cases.push_back(c);
  }
  return cases;
}

// The (first) GGUF file in the folder, or the folder itself.
std::string ModelPath(const std::string& folder) {
  std::string first;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    if (entry.path().extension() == ".gguf" && (first.empty() || path < first)) first = path;
  }
  return first.empty() ? folder : first;
}

// Returns "" when the tokens are as expected, up to the first tie, after which nothing can be compared.
std::string CompareTokens(const Case& c, const std::vector<int32_t>& tokens) {
  if (tokens.size() != c.tokens.size()) return absl::StrCat(tokens.size(), " tokens");
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] == c.tokens[i]) continue;
    if (std::find(c.ambiguous.begin(), c.ambiguous.end(), static_cast<int32_t>(i)) != c.ambiguous.end())
      return "";
    return absl::StrCat("token ", i, " is ", tokens[i], ", expected ", c.tokens[i]);
  }
  return "";
}

absl::Status Compare(const Case& c, const MiniResult& result, GoldenResult* out) {
  if (result.prompt_logprobs.size() != c.prompt_logprobs.size()) {
    return absl::InternalError(absl::StrCat(result.prompt_logprobs.size(), " prompt log-probabilities"));
  }
  for (size_t i = 0; i < c.prompt_logprobs.size(); ++i) {
    if (result.prompt_logprobs[i].token_ids(0) != c.prompt[i + 1])
      return absl::InternalError("another token's");
    const double difference = std::abs(result.prompt_logprobs[i].logprobs(0) - c.prompt_logprobs[i]);
    out->worst = std::max(out->worst, std::isnan(difference) ? 1e9 : difference);
  }
  if (out->mismatch.empty()) out->mismatch = CompareTokens(c, result.tokens);
  const size_t parted =
      std::mismatch(c.tokens.begin(), c.tokens.end(), result.tokens.begin(), result.tokens.end()).first -
      c.tokens.begin();
  if (parted < c.gaps.size()) out->parted_gap = std::max(out->parted_gap, c.gaps[parted]);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GoldenResult> RunGolden(const std::string& folder, int world_size, DataType dtype,
                                       const MakeRankDevice& make_device, size_t max_cases,
                                       bool expert_parallel) {
  const std::string model = ModelPath(folder);
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(model));
  ASSIGN_OR_RETURN(std::vector<Case> cases, ReadCases(folder));
  if (cases.size() > max_cases) cases.erase(cases.begin() + max_cases, cases.end());
  std::vector<MiniRequest> requests;
  for (const Case& c : cases) {
    MiniRequest request{c.prompt, static_cast<int32_t>(c.tokens.size())};
    request.sampling.set_num_prompt_logprobs(0);
    requests.push_back(request);
  }
  ModelRunnerOptions options{.dtype = dtype};
  options.dequantize = true;  // the expected values belong to weights in 16 bits
  options.expert_parallel = expert_parallel;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 128;
  options.max_model_len = std::min(256, checkpoint->config().max_position_embeddings);
  MiniOptions run{.max_step_tokens = 128, .num_blocks = 128};
  ASSIGN_OR_RETURN(const auto group,
                   RankGroup::Load(model, world_size, options, run.num_blocks, make_device));
  ASSIGN_OR_RETURN(const std::vector<MiniResult> results, RunAll(*group, requests, run));
  GoldenResult out;
  for (size_t i = 0; i < cases.size(); ++i) RETURN_IF_ERROR(Compare(cases[i], results[i], &out));
  return out;
}

}  // namespace somnus
