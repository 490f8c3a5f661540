// Chunks that become tensors, and chunks that are refused.

#include "worker/model/updated_tensors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/family.h"
#include "tests/fakes/unique_name.h"

namespace somnus {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kNorm[] = "model.norm.weight";

// The model's embedding is [6, 4], the other matrices are [4, 4], and the vectors [4].
ModelConfig Config(bool tied = true) {
  ModelConfig config;
  config.family = FindFamily([](const Family& family) { return std::string(family.model_type) == "llama"; });
  config.vocab_size = 6;
  config.hidden_size = config.embedding_dim = config.intermediate_size = config.head_dim = 4;
  config.num_layers = config.num_heads = config.num_kv_heads = 1;
  config.tie_word_embeddings = tied;
  return config;
}

class UpdatedTensorsTest : public testing::Test {
 protected:
  UpdatedTensorsTest() { Begin(/*needs_all=*/false); }

  void Begin(bool needs_all, bool tied = true) {
    placed_.clear();
    update_ = std::make_unique<UpdatedTensors>(Config(tied), needs_all, Placing());
  }
  // Keeps the numbers of each tensor.
  UpdatedTensors::Place Placing() {
    return [this](const Checkpoint& checkpoint, const TensorInfo& tensor) -> absl::Status {
      if (!place_error_.ok()) return place_error_;
      const int64_t cols = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
      std::vector<float> values(static_cast<size_t>(tensor.shape[0] * cols));
      const absl::Status read = checkpoint.ReadRows(tensor, 0, tensor.shape[0], 0, cols, values.data());
      if (read.ok()) placed_[tensor.name] = values;
      return read;
    };
  }

  static v1::WeightChunk Head(const std::string& name, const std::vector<int64_t>& shape,
                              v1::WeightDType dtype = v1::WEIGHT_DTYPE_FLOAT32) {
    v1::WeightChunk chunk;
    chunk.set_name(name);
    chunk.set_dtype(dtype);
    chunk.mutable_shape()->Add(shape.begin(), shape.end());
    return chunk;
  }
  static v1::WeightChunk WithData(v1::WeightChunk chunk, const std::vector<float>& values) {
    chunk.set_data(values.data(), values.size() * sizeof(float));
    return chunk;
  }
  // A whole vector.
  static v1::WeightChunk Norm(float value) {
    return WithData(Head(kNorm, {4}), {value, value, value, value});
  }

  std::unique_ptr<UpdatedTensors> update_;
  std::map<std::string, std::vector<float>> placed_;
  absl::Status place_error_;
};

TEST_F(UpdatedTensorsTest, ChunksBecomeTensorsAndNothingElseIsNeeded) {
  EXPECT_EQ(update_->Add(Norm(3)), absl::OkStatus());
  EXPECT_EQ(placed_[kNorm], std::vector<float>(4, 3));
  // A tensor's bytes may be cut anywhere, also within a number.
  std::vector<float> values(24);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 0.5f;
  const std::string bytes(reinterpret_cast<const char*>(values.data()), 96);
  v1::WeightChunk chunk = Head(kEmbedding, {6, 4});
  chunk.set_data("");
  EXPECT_EQ(update_->Add(chunk), absl::OkStatus());
  size_t at = 0;
  for (const size_t size : {1, 50, 0, 44, 1}) {
    EXPECT_EQ(placed_.count(kEmbedding), 0u);
    v1::WeightChunk next;
    next.set_data(bytes.substr(at, size));
    EXPECT_EQ(update_->Add(next), absl::OkStatus());
    at += size;
  }
  EXPECT_EQ(placed_[kEmbedding], values);
  EXPECT_EQ(update_->num_tensors(), 2);
  EXPECT_EQ(update_->num_bytes(), 16 + 96);
  EXPECT_EQ(update_->EndStream(), absl::OkStatus());
  EXPECT_EQ(update_->CheckComplete(), absl::OkStatus());
  // A tensor that comes again replaces the earlier numbers.
  EXPECT_EQ(update_->Add(Norm(5)), absl::OkStatus());
  EXPECT_EQ(placed_[kNorm], std::vector<float>(4, 5));
  EXPECT_EQ(update_->num_tensors(), 2);
}

TEST_F(UpdatedTensorsTest, MemoryOfAGpuIsCopiedIntoTheTensor) {
  std::vector<float> values;
  const auto place = [&](const Checkpoint& checkpoint, const TensorInfo& tensor) {
    values.resize(4);
    return checkpoint.ReadRows(tensor, 0, 4, 0, 1, values.data());
  };
  absl::Status error;
  UpdatedTensors update(Config(), /*needs_all=*/false, place, [&](const v1::CudaMemory& memory, void* to) {
    EXPECT_EQ(memory.handle(), "handle");
    const std::vector<float> all = {0, 1, 2, 3};
    std::memcpy(to, reinterpret_cast<const char*>(all.data()) + memory.offset(), memory.bytes());
    return error;
  });
  v1::WeightChunk first = Head(kNorm, {4}), rest;
  for (v1::WeightChunk* chunk : {&first, &rest}) chunk->mutable_cuda_memory()->set_handle("handle");
  first.mutable_cuda_memory()->set_bytes(10);
  rest.mutable_cuda_memory()->set_offset(10);
  rest.mutable_cuda_memory()->set_bytes(6);
  EXPECT_EQ(update.Add(first), absl::OkStatus());
  EXPECT_EQ(update.Add(rest), absl::OkStatus());
  EXPECT_EQ(values, (std::vector<float>{0, 1, 2, 3}));
  EXPECT_EQ(update.num_bytes(), 16);
  error = absl::InvalidArgumentError("no such handle");
  EXPECT_EQ(update.Add(first), absl::InvalidArgumentError("tensor model.norm.weight: no such handle"));
  for (const auto& [offset, bytes] :
       {std::pair<int64_t, int64_t>{0, 17}, {-1, 16}, {0, -1}, {0, INT64_MAX}}) {
    first.mutable_cuda_memory()->set_offset(offset);
    first.mutable_cuda_memory()->set_bytes(bytes);
    EXPECT_TRUE(absl::IsInvalidArgument(update.Add(first))) << offset << ", " << bytes;
  }
  first.mutable_cuda_memory()->set_offset(0);
  EXPECT_EQ(update_->Add(first),
            absl::InvalidArgumentError("tensor model.norm.weight: memory of a GPU cannot be opened here"));
}

TEST_F(UpdatedTensorsTest, TheChecksumIsOfNamesAndBytesHoweverTheyAreCut) {
  const auto checksum = [this](const std::vector<v1::WeightChunk>& chunks) {
    Begin(/*needs_all=*/false);
    for (const v1::WeightChunk& chunk : chunks) EXPECT_EQ(update_->Add(chunk), absl::OkStatus());
    return update_->checksum();
  };
  v1::WeightChunk first = Norm(3), rest;
  rest.set_data(first.data().substr(5));
  first.mutable_data()->resize(5);
  const uint64_t whole = checksum({Norm(3)});
  EXPECT_EQ(checksum({first, rest}), whole);
  EXPECT_NE(checksum({Norm(4)}), whole);
  EXPECT_NE(checksum({Norm(3), Norm(3)}), whole);
  v1::WeightChunk other = Norm(3);
  other.set_name("model.layers.0.input_layernorm.weight");
  EXPECT_NE(checksum({other}), whole);
}

TEST_F(UpdatedTensorsTest, TheTypesOfTheWireAreConverted) {
  v1::WeightChunk chunk = Head(kNorm, {4}, v1::WEIGHT_DTYPE_BFLOAT16);
  chunk.set_data(std::string("\x80\x3f\x00\xc0\x00\x00\x40\x40", 8));  // 1, -2, 0, 3
  EXPECT_EQ(update_->Add(chunk), absl::OkStatus());
  EXPECT_EQ(placed_[kNorm], (std::vector<float>{1, -2, 0, 3}));
  chunk = Head(kNorm, {4}, v1::WEIGHT_DTYPE_FLOAT16);
  chunk.set_data(std::string("\x00\x3c\x00\xc0\x00\x00\x00\x42", 8));
  EXPECT_EQ(update_->Add(chunk), absl::OkStatus());
  EXPECT_EQ(placed_[kNorm], (std::vector<float>{1, -2, 0, 3}));
}

TEST_F(UpdatedTensorsTest, WhatDoesNotFitTheModelIsRefusedByName) {
  v1::WeightChunk no_source = Head(kNorm, {4});
  v1::WeightChunk too_long = Norm(1);
  too_long.mutable_data()->push_back('x');
  v1::WeightChunk nothing;
  v1::WeightChunk headless;
  headless.set_data("abc");
  const struct {
    v1::WeightChunk chunk;
    std::string error;
  } cases[] = {
      {WithData(Head("model.norm", {4}), {1}), "tensor model.norm: the model has none of this name"},
      {WithData(Head("model.layers.1.input_layernorm.weight", {4}), {1}), "has none of this name"},
      {WithData(Head("a\n\xff", {4}), {1}), "tensor a\\n\\xff: the model has none"},
      {WithData(Head(kEmbedding, {4, 6}), {1}), "shape [4, 6] is sent, the model's is [6, 4]"},
      {WithData(Head(kEmbedding, {6, 4, 1}), {1}), "shape [6, 4, 1] is sent, the model's is [6, 4]"},
      {WithData(Head(kEmbedding, {-6, -4}), {1}), "shape [-6, -4] is sent"},
      {WithData(Head(kNorm, {}), {1}), "shape [] is sent, the model's is [4]"},
      {WithData(Head(kNorm, {4}, v1::WEIGHT_DTYPE_UNSPECIFIED), {1}), "dtype 0 is none that an update may"},
      {WithData(Head(kNorm, {4}, static_cast<v1::WeightDType>(77)), {1}), "dtype 77 is none"},
      {no_source, "tensor model.norm.weight: a chunk has neither data nor shared memory"},
      {too_long, "tensor model.norm.weight: it has 16 bytes, and 17 are sent"},
      {nothing, "chunk: it names no tensor, and none has been begun"},
      {headless, "chunk: it names no tensor, and none has been begun"},
  };
  for (const auto& test : cases) {
    const absl::Status status = update_->Add(test.chunk);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.error;
    EXPECT_THAT(status.message(), HasSubstr(test.error));
  }
  EXPECT_TRUE(placed_.empty());
  EXPECT_EQ(update_->num_tensors(), 0);
  EXPECT_EQ(update_->Add(Norm(1)), absl::OkStatus()) << "the next good one is taken";
}

TEST_F(UpdatedTensorsTest, ATensorIsCheckedBeforeItComes) {
  EXPECT_TRUE(update_->Check(Head(kNorm, {4})).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(update_->Check(Head("model.layers.7.norm.weight", {4}))));
  EXPECT_TRUE(absl::IsInvalidArgument(update_->Check(Head(kNorm, {5}))));
  EXPECT_TRUE(absl::IsInvalidArgument(update_->Check(Head(kNorm, {4}, v1::WEIGHT_DTYPE_UNSPECIFIED))));
  EXPECT_TRUE(update_->EndStream().ok()) << "nothing has begun";
}

TEST_F(UpdatedTensorsTest, PartsComeInTheirOrderWithNothingBetweenThem) {
  v1::WeightChunk first = WithData(Head(kEmbedding, {6, 4}), {1, 2, 3});
  ASSERT_EQ(update_->Add(first), absl::OkStatus());
  absl::Status status = update_->Add(Norm(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              HasSubstr("tensor model.norm.weight: it begins before model.embed_tokens.weight has ended, of "
                        "which 12 of 96 bytes have come"));
  // The part that has come is dropped: the rest alone is of no use.
  v1::WeightChunk rest;
  rest.set_data(std::string(84, '\0'));
  EXPECT_FALSE(update_->Add(rest).ok());
  ASSERT_EQ(update_->Add(first), absl::OkStatus());
  v1::WeightChunk again = rest;
  again.add_shape(6);
  EXPECT_THAT(std::string(update_->Add(again).message()), HasSubstr("in its first chunk alone"));
  ASSERT_EQ(update_->Add(first), absl::OkStatus());
  again = rest;
  again.mutable_data()->append("x");
  EXPECT_THAT(std::string(update_->Add(again).message()), HasSubstr("it has 96 bytes, and 97 are sent"));
  EXPECT_TRUE(placed_.empty());
  // An update whose tensor has come in part is not complete, until that tensor has come whole.
  status = update_->CheckComplete();
  EXPECT_EQ(status, absl::InvalidArgumentError(
                        "1 tensors are missing, or have come in part: model.embed_tokens.weight"));
  ASSERT_EQ(update_->Add(first), absl::OkStatus());
  ASSERT_EQ(update_->Add(rest), absl::OkStatus());
  EXPECT_EQ(update_->CheckComplete(), absl::OkStatus());
}

TEST_F(UpdatedTensorsTest, AStreamThatEndsWithinATensorDropsIt) {
  ASSERT_EQ(update_->Add(WithData(Head(kEmbedding, {6, 4}), {1, 2, 3})), absl::OkStatus());
  const absl::Status status = update_->EndStream();
  EXPECT_EQ(status,
            absl::InvalidArgumentError("tensor model.embed_tokens.weight: the stream ended after 12 of "
                                       "its 96 bytes"));
  EXPECT_EQ(update_->EndStream(), absl::OkStatus());
  EXPECT_FALSE(update_->CheckComplete().ok());
  EXPECT_EQ(update_->Add(WithData(Head(kEmbedding, {6, 4}), std::vector<float>(24, 1))), absl::OkStatus());
  EXPECT_EQ(update_->CheckComplete(), absl::OkStatus());
}

TEST_F(UpdatedTensorsTest, AnErrorOfThePlaceIsTheChunks) {
  place_error_ = absl::InternalError("the device is gone");
  EXPECT_EQ(update_->Add(Norm(1)), place_error_);
  EXPECT_FALSE(update_->CheckComplete().ok()) << "it may be there in part";
  place_error_ = absl::OkStatus();
  EXPECT_EQ(update_->Add(Norm(1)), absl::OkStatus());
  EXPECT_EQ(update_->CheckComplete(), absl::OkStatus());
}

TEST_F(UpdatedTensorsTest, StaleWeightsNeedEveryTensor) {
  Begin(/*needs_all=*/true);
  EXPECT_THAT(std::string(update_->CheckComplete().message()),
              StartsWith("11 tensors are missing, or have come in part: model.embed_tokens.weight, "));
  const Checkpoint& tensors = update_->tensors();
  for (const TensorInfo* tensor : tensors.Tensors()) {
    if (tensor->name == kNorm) continue;
    const bool matrix = tensor->shape.size() == 2;
    const size_t count = matrix ? static_cast<size_t>(tensor->shape[0] * tensor->shape[1]) : 4;
    ASSERT_EQ(update_->Add(WithData(Head(tensor->name, tensor->shape), std::vector<float>(count, 1))),
              absl::OkStatus());
  }
  EXPECT_EQ(update_->CheckComplete(),
            absl::InvalidArgumentError("1 tensors are missing, or have come in part: model.norm.weight"));
  EXPECT_EQ(update_->Add(Norm(1)), absl::OkStatus());
  EXPECT_EQ(update_->CheckComplete(), absl::OkStatus());
}

// transformers' state_dict has the head, whether tied to the embedding or not.
TEST_F(UpdatedTensorsTest, AnOutputMatrixThatIsTheEmbeddingIsIgnored) {
  const v1::WeightChunk head = WithData(Head("lm_head.weight", {6, 4}), std::vector<float>(24, 9));
  EXPECT_EQ(update_->Add(head), absl::OkStatus());
  v1::WeightChunk begin = WithData(Head("lm_head.weight", {6, 4}), {1, 2});
  v1::WeightChunk rest;
  rest.set_data(std::string(88, '\0'));
  EXPECT_EQ(update_->Add(begin), absl::OkStatus());
  EXPECT_EQ(update_->Add(rest), absl::OkStatus());
  EXPECT_TRUE(placed_.empty());
  EXPECT_EQ(update_->num_tensors(), 1);
  EXPECT_FALSE(update_->Add(WithData(Head("lm_head.weight", {4, 6}), {1})).ok()) << "its shape counts";
  Begin(false, /*tied=*/false);
  EXPECT_EQ(update_->Add(head), absl::OkStatus());
  EXPECT_EQ(placed_["lm_head.weight"], std::vector<float>(24, 9));
}

// Two experts of one column: gate, up and down are [1, 4] and [4, 1].
ModelConfig ConfigOfExperts() {
  ModelConfig config = Config();
  config.family =
      FindFamily([](const Family& family) { return std::string(family.model_type) == "qwen3_moe"; });
  config.experts.num_experts = 2;
  config.experts.expert_size = 1;
  return config;
}

TEST_F(UpdatedTensorsTest, ExpertsThatComeAsOneTensorAreHandedOverOneByOne) {
  update_ = std::make_unique<UpdatedTensors>(ConfigOfExperts(), /*needs_all=*/false, Placing());
  const std::string experts = "model.layers.0.mlp.experts.";
  std::vector<float> values(16);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::string bytes(reinterpret_cast<const char*>(values.data()), 64);
  v1::WeightChunk chunk = Head(experts + "gate_up_proj", {2, 2, 4});
  chunk.set_data(bytes.substr(0, 30));
  EXPECT_EQ(update_->Add(chunk), absl::OkStatus());
  EXPECT_TRUE(placed_.empty());
  v1::WeightChunk next;
  next.set_data(bytes.substr(30, 3));
  EXPECT_EQ(update_->Add(next), absl::OkStatus());
  EXPECT_EQ(placed_.size(), 2u) << "the first expert's";
  EXPECT_EQ(placed_[experts + "0.up_proj.weight"], std::vector<float>({4, 5, 6, 7}));
  EXPECT_FALSE(update_->CheckComplete().ok()) << "the second expert's have come in part";
  next.set_data(bytes.substr(33));
  EXPECT_EQ(update_->Add(next), absl::OkStatus());
  EXPECT_EQ(placed_[experts + "1.gate_proj.weight"], std::vector<float>({8, 9, 10, 11}));
  EXPECT_EQ(placed_[experts + "1.up_proj.weight"], std::vector<float>({12, 13, 14, 15}));
  EXPECT_EQ(update_->num_tensors(), 1) << "as they were sent";
  EXPECT_EQ(update_->num_bytes(), 64);
  // In one chunk, and each expert by itself.
  EXPECT_EQ(update_->Add(WithData(Head(experts + "down_proj", {2, 4, 1}), {1, 2, 3, 4, 5, 6, 7, 8})),
            absl::OkStatus());
  EXPECT_EQ(placed_[experts + "1.down_proj.weight"], std::vector<float>({5, 6, 7, 8}));
  EXPECT_EQ(update_->Add(WithData(Head(experts + "1.down_proj.weight", {4, 1}), {0, 0, 0, 1})),
            absl::OkStatus());
  EXPECT_EQ(placed_[experts + "1.down_proj.weight"], std::vector<float>({0, 0, 0, 1}));
  EXPECT_EQ(placed_.size(), 6u);
  EXPECT_EQ(update_->CheckComplete(), absl::OkStatus());
  EXPECT_THAT(std::string(update_->Add(WithData(Head(experts + "down_proj", {2, 1, 4}), {1})).message()),
              HasSubstr("the model's is [2, 4, 1]"));
}

// POSIX shared memory with the given bytes.
class Shared {
 public:
  explicit Shared(const std::string& bytes) : name_("/" + UniqueName()) {
    const int fd = shm_open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    EXPECT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    close(fd);
  }
  ~Shared() { shm_unlink(name_.c_str()); }
  const std::string& name() const { return name_; }
  v1::SharedMemory Part(int64_t offset, int64_t bytes) const {
    v1::SharedMemory part;
    part.set_name(name_);
    part.set_offset(offset);
    part.set_bytes(bytes);
    return part;
  }

 private:
  const std::string name_;
};

TEST_F(UpdatedTensorsTest, ChunksMayLieInSharedMemory) {
  const std::vector<float> values = {9, 1, 2, 3, 4, 9};
  const Shared shared(std::string(reinterpret_cast<const char*>(values.data()), 24));
  v1::WeightChunk whole = Head(kNorm, {4});
  *whole.mutable_shared_memory() = shared.Part(4, 16);
  EXPECT_EQ(update_->Add(whole), absl::OkStatus());
  EXPECT_EQ(placed_[kNorm], (std::vector<float>{1, 2, 3, 4}));
  placed_.clear();
  v1::WeightChunk begin = Head(kNorm, {4}), end;
  *begin.mutable_shared_memory() = shared.Part(16, 5);
  *end.mutable_shared_memory() = shared.Part(9, 11);
  EXPECT_EQ(update_->Add(begin), absl::OkStatus());
  EXPECT_EQ(update_->Add(end), absl::OkStatus());
  EXPECT_EQ(placed_[kNorm][0], 4);
  EXPECT_EQ(placed_[kNorm][3], 4);
  EXPECT_EQ(update_->num_bytes(), 32);
}

TEST_F(UpdatedTensorsTest, SharedMemoryIsCheckedBeforeItIsRead) {
  const Shared shared(std::string(16, '\0'));
  const auto add = [&](const v1::SharedMemory& part) {
    v1::WeightChunk chunk = Head(kNorm, {4});
    *chunk.mutable_shared_memory() = part;
    return update_->Add(chunk);
  };
  const int64_t huge = int64_t{1} << 62;
  for (const auto& [offset, bytes] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 17},
                                                {1, 16},
                                                {17, 0},
                                                {-1, 16},
                                                {0, -1},
                                                {huge, huge},
                                                {std::numeric_limits<int64_t>::max(), 16}}) {
    const absl::Status status = add(shared.Part(offset, bytes));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << offset << " " << bytes;
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("has 16 bytes, and not ", bytes, " from ", offset)));
  }
  v1::SharedMemory part = shared.Part(0, 16);
  for (const std::string& name :
       {std::string(""), std::string("/"), std::string("no-slash"), std::string("/../etc/passwd"),
        std::string("/a/b"), std::string("/.."), std::string("/."), std::string("/") + std::string(300, 'x'),
        std::string("/a\0b", 4), absl::StrCat(shared.name(), "-gone")}) {
    part.set_name(name);
    const absl::Status status = add(part);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), StartsWith("tensor model.norm.weight: shared memory"));
  }
  EXPECT_TRUE(placed_.empty());
  EXPECT_EQ(add(shared.Part(0, 16)), absl::OkStatus());
}

// The sender ends, or breaks its word, while a part is read: the worker lives, and the numbers do not count.
TEST_F(UpdatedTensorsTest, SharedMemoryThatIsCutWhileItIsReadIsAnError) {
  const Shared shared(std::string(1 << 16, '\1'));
  UpdatedTensors update(Config(), false, [&](const Checkpoint& checkpoint, const TensorInfo& tensor) {
    EXPECT_EQ(truncate(absl::StrCat("/dev/shm", shared.name()).c_str(), 0), 0);
    float values[4];
    return checkpoint.ReadRows(tensor, 0, 4, 0, 1, values);
  });
  v1::WeightChunk chunk = Head(kNorm, {4});
  *chunk.mutable_shared_memory() = shared.Part(8192, 16);
  const absl::Status status = update.Add(chunk);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(status.message(), HasSubstr("tensor model.norm.weight"));
  EXPECT_FALSE(update.CheckComplete().ok());
}

}  // namespace
}  // namespace somnus
