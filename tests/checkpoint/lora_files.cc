#include "tests/checkpoint/lora_files.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "checkpoint/dequantize.h"
#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

// A and B of one module, row by row, as stored.
struct Change {
  std::string module;
  int64_t rank = 0, rows = 0, cols = 0;
  std::vector<float> a, b;
  double scale = 0;
};

// An f32 file of tensors, in the order of Add.
class TensorFile {
 public:
  void Add(const std::string& name, const std::vector<int64_t>& shape, const std::vector<float>& values) {
    const size_t begin = data_.size();
    data_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    absl::StrAppend(&header_, header_.empty() ? "" : ",", "\"", name, "\":{\"dtype\":\"F32\",\"shape\":[",
                    absl::StrJoin(shape, ","), "],\"data_offsets\":[", begin, ",", data_.size(), "]}");
  }
  std::string Bytes() const { return SafetensorsFile(absl::StrCat("{", header_, "}"), data_); }

 private:
  std::string header_, data_;
};

template <typename Value>
Value Pick(const std::map<std::string, Value>& pattern, const std::string& module, Value otherwise) {
  const auto found = pattern.find(module);
  return found == pattern.end() ? otherwise : found->second;
}

std::vector<Change> ChangesOf(const Checkpoint& base, const LoraRecipe& recipe) {
  std::vector<const TensorInfo*> tensors = base.Tensors();
  std::sort(tensors.begin(), tensors.end(), [](auto* a, auto* b) { return a->name < b->name; });
  std::mt19937 random(recipe.seed);
  std::normal_distribution<float> normal(0, recipe.magnitude);
  std::vector<Change> changes;
  for (const TensorInfo* tensor : tensors) {
    const bool is_matrix = tensor->shape.size() == 2 && absl::StrContains(tensor->name, "layers.");
    if (!is_matrix) continue;
    Change change;
    change.module = std::string(absl::StripSuffix(tensor->name, ".weight"));
    const auto names = [&](const std::string& target) { return absl::EndsWith(change.module, "." + target); };
    if (!recipe.targets.empty() && std::none_of(recipe.targets.begin(), recipe.targets.end(), names))
      continue;
    change.rank = Pick(recipe.rank_pattern, change.module, recipe.rank);
    change.rows = tensor->shape[0];
    change.cols = tensor->shape[1];
    const double rank = static_cast<double>(change.rank);
    change.scale = Pick(recipe.alpha_pattern, change.module, recipe.alpha) /
                   (recipe.rank_stabilized ? std::sqrt(rank) : rank);
    for (int64_t i = 0; i < change.rank * change.cols; ++i) change.a.push_back(normal(random));
    for (int64_t i = 0; i < change.rows * change.rank; ++i) change.b.push_back(normal(random));
    changes.push_back(std::move(change));
  }
  return changes;
}

template <typename Value>
std::string PatternJson(const std::map<std::string, Value>& pattern) {
  return absl::StrCat("{",
                      absl::StrJoin(pattern, ",",
                                    [](std::string* out, const auto& entry) {
                                      absl::StrAppend(out, "\"", entry.first, "\":", entry.second);
                                    }),
                      "}");
}

std::string TargetsJson(const LoraRecipe& recipe, const std::vector<Change>& changes) {
  if (recipe.all_linear) return "\"all-linear\"";
  std::vector<std::string> names;
  for (const Change& change : changes) {
    const std::string name = change.module.substr(change.module.rfind('.') + 1);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return absl::StrCat("[\"", absl::StrJoin(names, "\",\""), "\"]");
}

}  // namespace

std::string WriteLora(const Checkpoint& base, const LoraRecipe& recipe) {
  const std::vector<Change> changes = ChangesOf(base, recipe);
  TensorFile file;
  for (const Change& change : changes) {
    const std::string prefix = absl::StrCat("base_model.model.", change.module);
    file.Add(prefix + ".lora_A.weight", {change.rank, change.cols}, change.a);
    file.Add(prefix + ".lora_B.weight", {change.rows, change.rank}, change.b);
  }
  const std::string directory = MakeTempDir();
  WriteFile(directory + "/adapter_model.safetensors", file.Bytes());
  WriteFile(
      directory + "/adapter_config.json",
      absl::StrCat("{\"peft_type\":\"LORA\",\"bias\":\"none\",\"use_dora\":false,\"modules_to_save\":null,",
                   "\"r\":", recipe.rank, ",\"lora_alpha\":", recipe.alpha,
                   ",\"use_rslora\":", recipe.rank_stabilized ? "true" : "false", ",\"rank_pattern\":",
                   PatternJson(recipe.rank_pattern), ",\"alpha_pattern\":", PatternJson(recipe.alpha_pattern),
                   ",\"target_modules\":", TargetsJson(recipe, changes), "}"));
  return directory;
}

std::string WriteMerged(const std::string& base_path, const Checkpoint& base, const LoraRecipe& recipe) {
  std::map<std::string, Change> changes;
  for (Change& change : ChangesOf(base, recipe)) changes[change.module + ".weight"] = std::move(change);
  TensorFile file;
  for (const TensorInfo* tensor : base.Tensors()) {
    int64_t count = 1;
    for (const int64_t size : tensor->shape) count *= size;
    std::vector<float> values(static_cast<size_t>(count));
    DequantizeRange(tensor->type, tensor->data, 0, count, values.data());
    if (const auto found = changes.find(tensor->name); found != changes.end()) {
      const Change& change = found->second;
      for (int64_t n = 0; n < change.rows; ++n) {
        for (int64_t k = 0; k < change.cols; ++k) {
          double sum = 0;
          for (int64_t r = 0; r < change.rank; ++r)
            sum += double{change.b[n * change.rank + r]} * change.a[r * change.cols + k];
          float& value = values[n * change.cols + k];
          value = static_cast<float>(value + change.scale * sum);
        }
      }
    }
    file.Add(tensor->name, tensor->shape, values);
  }
  const std::string directory = MakeTempDir();
  WriteFile(directory + "/config.json", ReadFile(base_path + "/config.json"));
  WriteFile(directory + "/model.safetensors", file.Bytes());
  return directory;
}

}  // namespace somnus
