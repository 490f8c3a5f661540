#include "tests/runner/quantized_gguf.h"

#include <cmath>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "checkpoint/storage_type.h"
#include "kernels/float_convert.h"
#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

constexpr int kLayers = 2, kHeads = 4, kKvHeads = 2;

int HeadDim(const QuantizedGguf& model) { return model.head_dim.value_or(model.hidden / kHeads); }

// A block whose other bits are all random, with a scale of 1: the standard deviation of the values, the
// minimum that makes the mean zero, and the places where scale and minimum are stored, as f16.
struct Stored {
  double deviation;
  double minimum = 0;
  size_t scale_at = 0;
  std::optional<size_t> minimum_at = {};
};

Stored NumbersOf(StorageType type) {
  switch (type) {
    case StorageType::kQ8_0:
      return {73.9};
    case StorageType::kQ4_0:
      return {4.6};
    case StorageType::kQ4_1:
      return {4.6, -7.5, 0, 2};
    case StorageType::kQ5_0:
      return {9.2};
    case StorageType::kQ5_1:
      return {9.2, -15.5, 0, 2};
    case StorageType::kIQ4_NL:
      return {68};
    case StorageType::kMXFP4:
      return {5.9};
    case StorageType::kQ2_K:
      return {13.9, 1.5, 80, 82};
    case StorageType::kQ3_K:
      return {42.9, 0, 108};
    case StorageType::kQ4_K:
      return {258, 7.5, 0, 2};
    case StorageType::kQ5_K:
      return {530, 15.5, 0, 2};
    default:
      SOMNUS_CHECK(type == StorageType::kQ6_K);
      return {1366, 0, 208};
  }
}

std::string Half(double value) {
  const float single = static_cast<float>(value);
  uint16_t half;
  ConvertFromFloat(&single, 1, DataType::kF16, &half);
  return Encode(half);
}

class Writer {
 public:
  explicit Writer(uint32_t seed) : random_(seed) {}

  void Matrix(const std::string& name, uint64_t rows, uint64_t cols, StorageType type, double deviation) {
    const BlockSize size = BlockSizeOf(type);
    const Stored numbers = NumbersOf(type);
    std::string data;
    for (uint64_t block = 0; block < rows * cols / size.elements; ++block) {
      // Blocks of different scales, so that a wrong scale shows.
      const double d = deviation / numbers.deviation * std::uniform_real_distribution<>(0.5, 1.5)(random_);
      std::string bytes;
      while (bytes.size() < static_cast<size_t>(size.bytes)) bytes += static_cast<char>(random_());
      if (type == StorageType::kMXFP4) {  // the scale is a power of two, 128 stands for 1
        bytes[0] = static_cast<char>(128 + std::lround(std::log2(d)));
      } else {
        bytes.replace(numbers.scale_at, 2, Half(d));
        if (numbers.minimum_at) bytes.replace(*numbers.minimum_at, 2, Half(numbers.minimum * d));
      }
      data += bytes;
    }
    Add(name, {cols, rows}, InfoOf(type).ggml_type, data);
  }
  void Ones(const std::string& name, uint64_t count) {
    std::string data;
    for (uint64_t i = 0; i < count; ++i) data += Encode(1.0f);
    Add(name, {count}, InfoOf(StorageType::kF32).ggml_type, data);
  }
  GgufWriter& file() { return file_; }

 private:
  void Add(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
           const std::string& data) {
    file_.Tensor(name + ".weight", dims, type, data);
  }

  std::mt19937 random_;
  GgufWriter file_;
};

void WriteMetadata(const QuantizedGguf& model, GgufWriter* file) {
  file->String("general.architecture", "llama");
  for (const auto& [key, value] : std::vector<std::pair<std::string, uint32_t>>{
           {"block_count", kLayers},
           {"context_length", 512},
           {"embedding_length", static_cast<uint32_t>(model.hidden)},
           {"feed_forward_length", static_cast<uint32_t>(model.intermediate)},
           {"attention.head_count", kHeads},
           {"attention.head_count_kv", kKvHeads},
           {"attention.key_length", static_cast<uint32_t>(HeadDim(model))},
           {"attention.value_length", static_cast<uint32_t>(HeadDim(model))}}) {
    file->Uint32("llama." + key, value);
  }
  file->Float32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  file->String("tokenizer.ggml.model", "gpt2");
  file->String("tokenizer.ggml.pre", "smollm");
  std::vector<std::string> tokens;
  for (int i = 0; i < model.vocab; ++i) tokens.push_back(absl::StrCat("t", i));
  file->Strings("tokenizer.ggml.tokens", tokens);
  file->Int32s("tokenizer.ggml.token_type", std::vector<int32_t>(model.vocab, 1));
  file->Strings("tokenizer.ggml.merges", {"t 1"});
  file->Uint32("tokenizer.ggml.eos_token_id", 0);
}

}  // namespace

std::string WriteQuantizedGguf(const QuantizedGguf& model) {
  Writer writer(model.seed);
  WriteMetadata(model, &writer.file());
  const int hidden = model.hidden, width = kHeads * HeadDim(model), kv_width = kKvHeads * HeadDim(model);
  const double in = 1 / std::sqrt(hidden), out = 1 / std::sqrt(width),
               mlp = 1 / std::sqrt(model.intermediate);
  writer.Matrix("token_embd", model.vocab, hidden, model.embedding, 2 * in);
  writer.Ones("output_norm", hidden);
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = absl::StrCat("blk.", layer, ".");
    const auto matrix = [&](const std::string& name, int rows, int cols, double deviation,
                            std::optional<StorageType> type = {}) {
      writer.Matrix(prefix + name, rows, cols, type.value_or(model.layers), deviation);
    };
    writer.Ones(prefix + "attn_norm", hidden);
    matrix("attn_q", width, hidden, in);
    matrix("attn_k", kv_width, hidden, in);
    matrix("attn_v", kv_width, hidden, in, model.values);
    matrix("attn_output", hidden, width, out);
    writer.Ones(prefix + "ffn_norm", hidden);
    matrix("ffn_gate", model.intermediate, hidden, in, model.gate);
    matrix("ffn_up", model.intermediate, hidden, in);
    matrix("ffn_down", hidden, model.intermediate, mlp);
  }
  const std::string path = MakeTempDir() + "/model.gguf";
  WriteFile(path, writer.file().Write());
  return path;
}

}  // namespace somnus
