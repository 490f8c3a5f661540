#include "tests/checkpoint/writers.h"

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"

namespace somnus {
namespace {

constexpr uint32_t kString = 8, kArray = 9;

std::string EncodeString(const std::string& text) { return Encode<uint64_t>(text.size()) + text; }

std::string Padded(std::string bytes) {
  bytes.resize((bytes.size() + 31) / 32 * 32, '\0');
  return bytes;
}

}  // namespace

std::string SafetensorsFile(const std::string& header, const std::string& data) {
  return Encode<uint64_t>(header.size()) + header + data;
}

std::string SafetensorsOf(const std::vector<std::pair<std::string, std::vector<int64_t>>>& tensors) {
  std::vector<std::string> entries;
  std::string data;
  float next = 0;
  for (const auto& [name, shape] : tensors) {
    int64_t elements = 1;
    for (const int64_t dim : shape) elements *= dim;
    const size_t begin = data.size();
    for (int64_t i = 0; i < elements; ++i) data += Encode(next++);
    entries.push_back(absl::StrCat("\"", name, "\":{\"dtype\":\"F32\",\"shape\":[", absl::StrJoin(shape, ","),
                                   "],\"data_offsets\":[", begin, ",", data.size(), "]}"));
  }
  return SafetensorsFile("{" + absl::StrJoin(entries, ",") + "}", data);
}

void GgufWriter::Raw(const std::string& key, uint32_t type, const std::string& encoded) {
  keys_ += EncodeString(key) + Encode(type) + encoded;
  ++num_keys_;
}

void GgufWriter::String(const std::string& key, const std::string& value) {
  Raw(key, kString, EncodeString(value));
}
void GgufWriter::Uint32(const std::string& key, uint32_t value) { Raw(key, 4, Encode(value)); }
void GgufWriter::Float32(const std::string& key, float value) { Raw(key, 6, Encode(value)); }
void GgufWriter::Bool(const std::string& key, bool value) { Raw(key, 7, Encode<uint8_t>(value)); }

void GgufWriter::Strings(const std::string& key, const std::vector<std::string>& values) {
  std::string encoded = Encode(kString) + Encode<uint64_t>(values.size());
  for (const std::string& value : values) encoded += EncodeString(value);
  Raw(key, kArray, encoded);
}

void GgufWriter::Int32s(const std::string& key, const std::vector<int32_t>& values) {
  std::string encoded = Encode<uint32_t>(5) + Encode<uint64_t>(values.size());
  for (const int32_t value : values) encoded += Encode(value);
  Raw(key, kArray, encoded);
}

void GgufWriter::Float32s(const std::string& key, const std::vector<float>& values) {
  std::string encoded = Encode<uint32_t>(6) + Encode<uint64_t>(values.size());
  for (const float value : values) encoded += Encode(value);
  Raw(key, kArray, encoded);
}

void GgufWriter::TensorAt(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                          uint64_t offset) {
  descriptions_ += EncodeString(name) + Encode<uint32_t>(dims.size());
  for (const uint64_t dim : dims) descriptions_ += Encode(dim);
  descriptions_ += Encode(type) + Encode(offset);
  ++num_tensors_;
}

void GgufWriter::Tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                        const std::string& data) {
  TensorAt(name, dims, type, data_.size());
  data_ = Padded(data_ + data);
}

std::string GgufWriter::Header(uint32_t version) const {
  return "GGUF" + Encode(version) + Encode(num_tensors_) + Encode(num_keys_) + keys_ + descriptions_;
}

std::string GgufWriter::Write(uint32_t version) const { return Padded(Header(version)) + data_; }

GgufWriter TinyGguf(const std::string& arch) {
  GgufWriter w;
  w.String("general.architecture", arch);
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, uint32_t>>{{"block_count", 1},
                                                     {"context_length", 64},
                                                     {"embedding_length", 8},
                                                     {"feed_forward_length", 6},
                                                     {"attention.head_count", 2},
                                                     {"attention.head_count_kv", 1}}) {
    w.Uint32(absl::StrCat(arch, ".", key), value);
  }
  w.Float32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  w.String("tokenizer.ggml.model", "gpt2");
  w.String("tokenizer.ggml.pre", "smollm");
  w.Strings("tokenizer.ggml.tokens", {"<s>", "a", "b", "ab", "[PAD]", "<tool>"});
  w.Int32s("tokenizer.ggml.token_type", {3, 1, 1, 1, 5, 4});
  w.Strings("tokenizer.ggml.merges", {"a b"});
  w.Uint32("tokenizer.ggml.eos_token_id", 0);
  float next = 0;
  auto add = [&](const std::string& name, const std::vector<uint64_t>& dims) {
    uint64_t elements = 1;
    for (const uint64_t dim : dims) elements *= dim;
    std::string data;
    for (uint64_t i = 0; i < elements; ++i) data += Encode(next++);
    w.Tensor(name, dims, 0, data);
  };
  add("token_embd.weight", {8, 6});
  add("output_norm.weight", {8});
  add("blk.0.attn_norm.weight", {8});
  add("blk.0.attn_q.weight", {8, 8});
  add("blk.0.attn_k.weight", {8, 4});
  add("blk.0.attn_v.weight", {8, 4});
  add("blk.0.attn_output.weight", {8, 8});
  add("blk.0.ffn_norm.weight", {8});
  add("blk.0.ffn_gate.weight", {8, 6});
  add("blk.0.ffn_up.weight", {8, 6});
  add("blk.0.ffn_down.weight", {6, 8});
  return w;
}

std::string MakeTempDir() {
  const char* root = std::getenv("TEST_TMPDIR");
  std::string path = absl::StrCat(root != nullptr ? root : "/tmp", "/checkpoint.XXXXXX");
  SOMNUS_CHECK(mkdtemp(path.data()) != nullptr);
  return path;
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  SOMNUS_CHECK(in.good());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace somnus
