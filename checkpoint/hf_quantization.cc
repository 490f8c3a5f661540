#include "checkpoint/hf_quantization.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

using nlohmann::json;
using Method = QuantizationConfig::Method;

constexpr char kMethod[] = "quant_method";
constexpr int64_t kMaxGroup = int64_t{1} << 28;
constexpr char kMethods[] = "gptq, awq, compressed-tensors, fp8, fbgemm_fp8 and mxfp4 are read";

// The number of bits, under either name.
void ReadBits(JsonFields* f, const char* key, QuantizationConfig* out) {
  out->bits = static_cast<int32_t>(f->Int(key, 0, 1, 32));
  if (out->bits == 4 || out->bits == 8) return;
  f->Note(f->Has(key) ? f->Unsupported(key, absl::StrCat(out->bits, " bits, neither 4 nor 8,"))
                      : f->Bad(key, "missing"));
}

void ReadGroupSize(JsonFields* f, const char* key, QuantizationConfig* out) {
  out->group_size = f->Int(key, 128, -1, kMaxGroup);
  if (out->group_size == 0) f->Note(f->Bad(key, "0 inputs share no scale"));
}

// AutoGPTQ's and GPTQModel's quantize_config.json, in config.json. desc_act is not asked: the order of the
// inputs is in g_idx.
absl::Status ReadGptq(JsonFields* f, QuantizationConfig* out) {
  out->method = Method::kGptq;
  ReadBits(f, "bits", out);
  ReadGroupSize(f, "group_size", out);
  out->symmetric = f->Bool("sym", true);
  const std::string format = f->String("checkpoint_format", "gptq");
  if (format != "gptq" && format != "gptq_v2") return f->Unsupported("checkpoint_format", format);
  out->zeros_less_1 = format == "gptq";
  if (f->Bool("is_marlin_format", false)) return f->Unsupported("is_marlin_format", "Marlin's order");
  // Rules by modules' names: rules that begin with "-:" leave modules unquantized, which the tensors show.
  for (const auto& [rule, value] : f->Object("dynamic").items()) {
    if (!absl::StartsWith(rule, "-:")) return f->Unsupported("dynamic", "a rule for some modules");
  }
  return f->status();
}

// AutoAWQ's configuration, with keys older than the keys of transformers.
absl::Status ReadAwq(JsonFields* f, QuantizationConfig* out) {
  out->method = Method::kAwq;
  const char* bits = f->Has("bits") ? "bits" : "w_bit";
  ReadBits(f, bits, out);
  if (out->bits == 8) return f->Unsupported(bits, "8 bits in AWQ's order");
  ReadGroupSize(f, f->Has("group_size") ? "group_size" : "q_group_size", out);
  out->symmetric = false;
  const std::string version = absl::AsciiStrToLower(f->String("version", "gemm"));
  if (version != "gemm") return f->Unsupported("version", absl::StrCat(version, ", not gemm,"));
  if (!f->Bool("zero_point", true)) return f->Unsupported("zero_point", "false");
  return f->status();
}

// Reads the settings of a group of modules for its weights; `alone`: there is no other group.
absl::Status ReadWeightsArgs(bool alone, JsonFields* f, QuantizationConfig* out) {
  const int64_t bits = f->Int("num_bits", 8, 1, 32);
  const std::string type = f->String("type", "int");
  RETURN_IF_ERROR(f->status());
  if (type != "int" && type != "float") return f->Unsupported("type", type);
  if (type == "float" && bits != 8)
    return f->Unsupported("num_bits", absl::StrCat("a float of ", bits, " bits"));
  if (bits != 4 && bits != 8)
    return f->Unsupported("num_bits", absl::StrCat(bits, " bits, neither 4 nor 8,"));
  out->float8 = out->float8 || type == "float";
  if (!alone) return absl::OkStatus();
  out->bits = static_cast<int32_t>(bits);
  out->symmetric = f->Bool("symmetric", true);
  const std::string strategy = f->String("strategy", "");
  if (strategy == "group") ReadGroupSize(f, "group_size", out);
  return f->status();
}

void ReadBlockShape(JsonFields* f, const char* key, QuantizationConfig* out) {
  const json* shape = f->Find(key);
  if (shape == nullptr || shape->is_null()) return;
  const bool two = shape->is_array() && shape->size() == 2 && (*shape)[0].is_number_unsigned() &&
                   (*shape)[1].is_number_unsigned();
  const uint64_t rows = two ? (*shape)[0].get<uint64_t>() : 0, cols = two ? (*shape)[1].get<uint64_t>() : 0;
  if (rows < 1 || rows > kMaxGroup || cols < 1 || cols > kMaxGroup)
    return f->Note(f->Bad(key, "not a list of two sizes"));
  out->block_rows = static_cast<int64_t>(rows);
  out->group_size = static_cast<int64_t>(cols);
}

absl::Status ReadCompressedTensors(JsonFields* f, QuantizationConfig* out) {
  out->method = Method::kCompressedTensors;
  const std::string format = f->String("format", "dense");
  constexpr const char* kFormats[] = {"dense", "pack-quantized", "int-quantized", "float-quantized",
                                      "naive-quantized"};
  if (std::find(std::begin(kFormats), std::end(kFormats), format) == std::end(kFormats))
    return f->Unsupported("format", format);
  // Rotations of inputs that the model would have to compute.
  JsonFields transform(f->file(), f->Object("transform_config"), "quantization_config.transform_config.");
  if (!transform.Object("config_groups").empty())
    return f->Unsupported("transform_config", "a rotation of some modules");
  RETURN_IF_ERROR(transform.status());
  const json& groups = f->Object("config_groups");
  RETURN_IF_ERROR(f->status());
  for (const auto& [name, group] : groups.items()) {
    const std::string prefix = absl::StrCat("quantization_config.config_groups.", name, ".");
    if (!group.is_object()) return f->Bad("config_groups", absl::StrCat(name, " is not an object"));
    JsonFields of_group(f->file(), group, prefix);
    JsonFields weights(f->file(), of_group.Object("weights"), prefix + "weights.");
    RETURN_IF_ERROR(of_group.status());
    if (!of_group.Has("weights")) continue;
    RETURN_IF_ERROR(ReadWeightsArgs(groups.size() == 1, &weights, out));
    ReadBlockShape(&weights, "block_structure", out);
    RETURN_IF_ERROR(weights.status());
  }
  return f->status();
}

absl::Status ReadFp8(JsonFields* f, QuantizationConfig* out) {
  out->method = Method::kFp8;
  out->float8 = true;
  out->bits = 8;
  const std::string format = f->String("fmt", "e4m3");
  if (format != "e4m3" && format != "float8_e4m3fn") return f->Unsupported("fmt", format);
  ReadBlockShape(f, "weight_block_size", out);
  return f->status();
}

// Tools that remove a model's quantization leave an object without values.
bool IsSet(const char* key, JsonFields* fields) {
  const json& object = fields->Object(key);
  return std::any_of(object.begin(), object.end(), [](const json& value) { return !value.is_null(); });
}

}  // namespace

absl::Status ReadQuantization(JsonFields* fields, QuantizationConfig* quantization) {
  const char* key = IsSet("quantization_config", fields) ? "quantization_config" : "compression_config";
  if (!IsSet(key, fields)) return fields->status();
  JsonFields f(fields->file(), fields->Object(key), absl::StrCat(key, "."));
  RETURN_IF_ERROR(fields->status());
  const std::string method = f.String(kMethod, "");
  RETURN_IF_ERROR(f.status());
  if (method.empty()) return f.Bad(kMethod, "missing");
  if (method == "gptq") return ReadGptq(&f, quantization);
  if (method == "awq") return ReadAwq(&f, quantization);
  if (method == "compressed-tensors") return ReadCompressedTensors(&f, quantization);
  if (method == "fp8" || method == "fbgemm_fp8") return ReadFp8(&f, quantization);
  if (method == "mxfp4") {
    // Experts' (fused_experts.h). The other keys name modules, which the tensors show.
    quantization->method = Method::kMxfp4;
    return f.status();
  }
  return absl::UnimplementedError(absl::StrCat(f.Unsupported(kMethod, method).message(), "; ", kMethods));
}

}  // namespace somnus
