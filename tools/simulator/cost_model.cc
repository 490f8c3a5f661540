#include "tools/simulator/cost_model.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

constexpr size_t kTerms = 4;
using Terms = std::array<double, kTerms>;

Terms TermsOf(const StepLoad& load) {
  return {1, static_cast<double>(load.prefill_tokens), static_cast<double>(load.decode_sequences),
          static_cast<double>(load.kv_tokens)};
}

// Solves the normal equations for the terms in `used`; all other terms are 0. Terms that do not vary
// independently of the rest get 0, too.
Terms Solve(const std::vector<Terms>& rows, const std::array<bool, kTerms>& used) {
  std::array<std::array<double, kTerms + 1>, kTerms> matrix = {};
  Terms scale = {};
  for (const Terms& row : rows) {
    for (size_t i = 0; i < kTerms; ++i) scale[i] = std::max(scale[i], std::abs(row[i]));
  }
  for (const Terms& row : rows) {
    for (size_t i = 0; i < kTerms; ++i) {
      if (!used[i] || scale[i] == 0) continue;
      for (size_t j = 0; j < kTerms; ++j) {
        if (used[j] && scale[j] > 0) matrix[i][j] += row[i] / scale[i] * row[j] / scale[j];
      }
      matrix[i][kTerms] += row[i] / scale[i];
    }
  }
  Terms solution = {};
  std::array<bool, kTerms> solved = {};
  for (size_t i = 0; i < kTerms; ++i) {
    if (matrix[i][i] < 1e-9 * static_cast<double>(rows.size())) continue;
    solved[i] = true;
    for (size_t k = 0; k < kTerms; ++k) {
      if (k == i) continue;
      const double factor = matrix[k][i] / matrix[i][i];
      for (size_t j = 0; j <= kTerms; ++j) matrix[k][j] -= factor * matrix[i][j];
    }
  }
  for (size_t i = 0; i < kTerms; ++i) {
    if (solved[i]) solution[i] = matrix[i][kTerms] / matrix[i][i] / scale[i];
  }
  return solution;
}

double ErrorAt(const std::vector<double>& sorted, double quantile) {
  return sorted[static_cast<size_t>(quantile * static_cast<double>(sorted.size() - 1))];
}

}  // namespace

absl::StatusOr<ModelledWorker> FindWorker(const std::string& name) {
  // The paper's Table 1: 12 GB of an A100 are left for a cache of 0.8 MB a token. The coefficients follow
  // from the paper's Figure 13, as docs/paper.md explains.
  const ModelledWorker paper = {"a100-opt-13b", {25e-3, 0.167e-3, 0.287e-3, 0.695e-6, 33e-6}, 15728, 5242};
  // SmolLM2-135M on two cores, from the steps that docs/measured has.
  const ModelledWorker here = {
      "cpu-smollm2-135m", {4.67e-3, 0.399e-3, 0.517e-3, 0.341e-6, 5.8e-6}, 65536, 186413};
  for (const ModelledWorker& worker : {paper, here}) {
    if (worker.name == name) return worker;
  }
  return absl::NotFoundError(
      absl::StrCat("no worker is called ", name, "; known: ", paper.name, ", ", here.name));
}

absl::StatusOr<CostFit> FitCostModel(const std::vector<StepSample>& samples) {
  if (samples.size() < kTerms) return absl::InvalidArgumentError("four samples are needed at least");
  std::vector<Terms> rows;
  for (const StepSample& sample : samples) {
    if (sample.seconds <= 0) return absl::InvalidArgumentError("a sample took no time");
    Terms row = TermsOf(sample.load);
    for (double& term : row) term /= sample.seconds;  // so that every sample's target is 1
    rows.push_back(row);
  }
  std::array<bool, kTerms> used = {true, true, true, true};
  Terms solution = Solve(rows, used);
  // Active set: leaves out the most negative term until there is none.
  for (auto least = std::min_element(solution.begin(), solution.end()); *least < 0;
       least = std::min_element(solution.begin(), solution.end())) {
    used[static_cast<size_t>(least - solution.begin())] = false;
    solution = Solve(rows, used);
  }
  CostFit fit;
  fit.model = {solution[0], solution[1], solution[2], solution[3], 0};
  std::vector<double> errors;
  for (const StepSample& sample : samples)
    errors.push_back(std::abs(fit.model.StepSeconds(sample.load) - sample.seconds) / sample.seconds);
  std::sort(errors.begin(), errors.end());
  fit.median_error = ErrorAt(errors, 0.5);
  fit.p90_error = ErrorAt(errors, 0.9);
  fit.largest_error = errors.back();
  return fit;
}

absl::StatusOr<std::vector<StepSample>> ReadStepSamples(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::vector<StepSample> samples;
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty()) continue;
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto number = [&](const char* name) {
      const auto field = json.is_object() ? json.find(name) : json.end();
      return field != json.end() && field->is_number() ? field->get<double>() : -1.0;
    };
    StepSample sample;
    sample.load.prefill_tokens = static_cast<int64_t>(number("prefill_tokens"));
    sample.load.decode_sequences = static_cast<int64_t>(number("decode_sequences"));
    sample.load.kv_tokens = static_cast<int64_t>(number("kv_tokens"));
    sample.seconds = number("seconds");
    if (sample.load.prefill_tokens < 0 || sample.load.decode_sequences < 0 || sample.load.kv_tokens < 0 ||
        sample.seconds < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", samples.size() + 1, ": is no sample of a step"));
    }
    samples.push_back(sample);
  }
  return samples;
}

}  // namespace somnus
