// Products by cuBLASLt: the calls that the library gets, how often, and the way out when the library refuses.
// Needs no GPU: the library is a fake, except in the test that opens the real library.

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "kernels/cuda/gemm_cublaslt.h"
#include "tests/cuda/fake_cublaslt.h"

namespace somnus::cuda_device {
namespace {

using cuda_test::FakeCublasLt;

constexpr int64_t kWorkspace = 1 << 20;

class CublasLtGemmTest : public testing::Test {
 protected:
  ~CublasLtGemmTest() override {
    gemm_ = nullptr;
    EXPECT_EQ(lt_.handles, 0);
    EXPECT_EQ(lt_.objects, 0) << "descriptions were leaked";
  }
  void Start(size_t max_plans = 100, size_t max_choices = 100) {
    auto gemm = CublasLtGemm::Create(
        lt_.api(), {.workspace_bytes = kWorkspace, .max_plans = max_plans, .max_choices = max_choices},
        [this](cudaStream_t, absl::FunctionRef<absl::Status()> work) -> absl::StatusOr<double> {
          const absl::Status status = work();
          if (!status.ok()) return status;
          return milliseconds_[lt_.products.back().algorithm];
        });
    ASSERT_TRUE(gemm.ok()) << gemm.status();
    gemm_ = *std::move(gemm);
  }
  // Addresses are never followed.
  static void* At(uintptr_t address) { return reinterpret_cast<void*>(address); }
  GemmCall Call(int64_t rows, int64_t n = 96, int64_t k = 64, DataType out = DataType::kBF16) {
    return {.x = {At(0x10000), DataType::kBF16, rows, k, k + 8},
            .w = {At(0x20000), DataType::kBF16, n, k},
            .bias = nullptr,
            .y = {At(0x30000), out, rows, n, n + 16},
            .workspace = static_cast<char*>(At(0x40000)),
            .workspace_bytes = kWorkspace};
  }
  absl::Status Run(const GemmCall& call) { return gemm_->RunOn(nullptr, call); }

  FakeCublasLt lt_;
  std::map<uint64_t, double> milliseconds_;
  std::unique_ptr<CublasLtGemm> gemm_;
};

TEST_F(CublasLtGemmTest, DescribesTheProduct) {
  Start();
  auto* const stream = static_cast<cudaStream_t>(At(0x999));
  const GemmCall call = Call(100);
  ASSERT_TRUE(gemm_->RunOn(stream, call).ok());
  ASSERT_EQ(lt_.products.size(), 1u);
  const FakeCublasLt::Product& product = lt_.products[0];
  EXPECT_EQ(product.operation.compute, CUBLAS_COMPUTE_32F);
  EXPECT_EQ(product.operation.scale, CUDA_R_32F);
  EXPECT_EQ(product.operation.Get<int32_t>(CUBLASLT_MATMUL_DESC_TRANSA), CUBLAS_OP_T);
  EXPECT_FALSE(product.operation.attributes.contains(CUBLASLT_MATMUL_DESC_TRANSB));
  EXPECT_FALSE(product.operation.attributes.contains(CUBLASLT_MATMUL_DESC_EPILOGUE));
  EXPECT_EQ(product.a_data, call.w.data);
  EXPECT_EQ(product.b_data, call.x.data);
  EXPECT_EQ(product.d_data, call.y.data);
  const auto expect_layout = [](const FakeCublasLt::Layout& layout, uint64_t rows, uint64_t cols,
                                int64_t stride) {
    EXPECT_EQ(layout.type, CUDA_R_16BF);
    EXPECT_EQ(layout.rows, rows);
    EXPECT_EQ(layout.cols, cols);
    EXPECT_EQ(layout.stride, stride);
  };
  expect_layout(product.a, 64, 96, 64);
  expect_layout(product.b, 64, 100, 72);
  expect_layout(product.d, 96, 100, 112);
  EXPECT_EQ(product.stream, stream);
  EXPECT_EQ(product.workspace, call.workspace);
}

TEST_F(CublasLtGemmTest, AsksForWhatMayBeUsed) {
  Start();
  GemmCall call = Call(16);
  call.x.data = At(0x10010);
  call.y.data = At(0x30040);
  ASSERT_TRUE(Run(call).ok());
  const auto& asked = lt_.preference;
  EXPECT_EQ(asked.Get<uint64_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES), static_cast<uint64_t>(kWorkspace));
  EXPECT_EQ(asked.Get<uint32_t>(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK),
            CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
      << "split sums are added in f32";
  EXPECT_EQ(asked.Get<uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES), 256u);
  EXPECT_EQ(asked.Get<uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES), 16u);
  EXPECT_EQ(asked.Get<uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES), 64u);
  EXPECT_EQ(asked.Get<uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES), 64u);
}

TEST_F(CublasLtGemmTest, TypesOfOperandsAndResult) {
  Start();
  const std::pair<DataType, cudaDataType_t> types[] = {
      {DataType::kF32, CUDA_R_32F}, {DataType::kBF16, CUDA_R_16BF}, {DataType::kF16, CUDA_R_16F}};
  for (const auto& [act, act_type] : types) {
    for (const auto& [out, out_type] : types) {
      if (out != act && out != DataType::kF32) continue;
      GemmCall call = Call(32);
      call.x.dtype = call.w.dtype = act;
      call.y.dtype = out;
      call.bias = At(0x50000);
      ASSERT_TRUE(Run(call).ok());
      const FakeCublasLt::Product& product = lt_.products.back();
      EXPECT_EQ(product.a.type, act_type);
      EXPECT_EQ(product.b.type, act_type);
      EXPECT_EQ(product.d.type, out_type);
      // Neither TF32 nor sums in the operands' type.
      EXPECT_EQ(product.operation.compute, CUBLAS_COMPUTE_32F);
      EXPECT_EQ(product.operation.Get<int32_t>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE), out_type);
    }
  }
}

TEST_F(CublasLtGemmTest, ABiasIsTheEpilogues) {
  Start();
  GemmCall call = Call(32);
  for (const uintptr_t bias : {0x50000, 0x60000, 0x60000}) {
    call.bias = At(bias);
    ASSERT_TRUE(Run(call).ok());
    const auto& operation = lt_.products.back().operation;
    EXPECT_EQ(operation.Get<uint32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE), CUBLASLT_EPILOGUE_BIAS);
    EXPECT_EQ(operation.Get<const void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER), call.bias);
  }
  EXPECT_EQ(lt_.heuristics, 1) << "where the bias lies changes nothing";
}

TEST_F(CublasLtGemmTest, AShapeIsAskedForOnce) {
  Start();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Run(Call(100)).ok());
  EXPECT_EQ(lt_.heuristics, 1);
  EXPECT_EQ(lt_.products.size(), 5u);
  GemmCall other = Call(100);
  other.w.data = At(0x70000);
  ASSERT_TRUE(Run(other).ok());
  EXPECT_EQ(lt_.heuristics, 1) << "another layer's weight of that shape";
  ASSERT_TRUE(Run(Call(100, 97)).ok());
  EXPECT_EQ(lt_.heuristics, 2);
}

TEST_F(CublasLtGemmTest, NeighboursShareAChoiceButNotTheirRows) {
  Start();
  for (const int64_t rows : {100, 101, 97, 112}) {
    ASSERT_TRUE(Run(Call(rows)).ok());
    EXPECT_EQ(lt_.products.back().b.cols, static_cast<uint64_t>(rows));
    EXPECT_EQ(lt_.products.back().d.cols, static_cast<uint64_t>(rows));
    EXPECT_EQ(lt_.products.back().algorithm, 7u);
  }
  EXPECT_EQ(lt_.heuristics, 1);
  EXPECT_EQ(lt_.heuristic_rows, 112u) << "asked for the largest of them";
  EXPECT_EQ(lt_.checks, 3) << "112 is what was asked for";
  EXPECT_EQ(lt_.products.back().workspace_bytes, 1000u);
  EXPECT_EQ(lt_.products.front().workspace_bytes, 500u) << "as the check said for these rows";
}

TEST_F(CublasLtGemmTest, AChoiceThatDoesNotFitIsAskedForExactly) {
  Start();
  lt_.check_status = CUBLAS_STATUS_NOT_SUPPORTED;
  ASSERT_TRUE(Run(Call(100)).ok());
  EXPECT_EQ(lt_.heuristics, 2);
  EXPECT_EQ(lt_.heuristic_rows, 100u);
  ASSERT_TRUE(Run(Call(100)).ok());
  EXPECT_EQ(lt_.heuristics, 2);
}

TEST_F(CublasLtGemmTest, TheFirstIdeaWithinTheLimitIsTaken) {
  Start();
  lt_.candidates = {{.algorithm = 1, .workspace_bytes = kWorkspace + 1},
                    {.algorithm = 2, .workspace_bytes = 10, .state = CUBLAS_STATUS_NOT_SUPPORTED},
                    {.algorithm = 3, .workspace_bytes = kWorkspace},
                    {.algorithm = 4, .workspace_bytes = 0}};
  ASSERT_TRUE(Run(Call(16)).ok());
  EXPECT_EQ(lt_.products[0].algorithm, 3u);
  EXPECT_EQ(lt_.products[0].workspace_bytes, static_cast<size_t>(kWorkspace));
}

TEST_F(CublasLtGemmTest, NeverUsesMoreWorkspaceThanThereIs) {
  Start();
  GemmCall call = Call(16);
  call.workspace_bytes = 999;
  const absl::Status status = Run(call);
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_NE(status.message().find("1000 bytes of workspace"), std::string::npos) << status;
  EXPECT_TRUE(lt_.products.empty());
}

TEST_F(CublasLtGemmTest, NoWayIsUnimplementedAndRemembered) {
  Start();
  lt_.heuristic_status = CUBLAS_STATUS_NOT_SUPPORTED;
  for (int i = 0; i < 3; ++i) {
    const absl::Status status = Run(Call(16));
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    EXPECT_NE(status.message().find("16 rows, n 96, k 64"), std::string::npos) << status;
  }
  EXPECT_EQ(lt_.heuristics, 1);
  EXPECT_TRUE(lt_.products.empty());
  lt_.heuristic_status = CUBLAS_STATUS_SUCCESS;
  lt_.candidates.clear();
  EXPECT_TRUE(absl::IsUnimplemented(Run(Call(8))));
}

TEST_F(CublasLtGemmTest, OtherErrorsAreNotRemembered) {
  Start();
  lt_.heuristic_status = CUBLAS_STATUS_ALLOC_FAILED;
  EXPECT_TRUE(absl::IsResourceExhausted(Run(Call(16))));
  lt_.heuristic_status = CUBLAS_STATUS_INTERNAL_ERROR;
  EXPECT_TRUE(absl::IsInternal(Run(Call(16))));
  lt_.heuristic_status = CUBLAS_STATUS_SUCCESS;
  lt_.layout_status = CUBLAS_STATUS_ALLOC_FAILED;
  EXPECT_TRUE(absl::IsResourceExhausted(Run(Call(16))));
  lt_.layout_status = CUBLAS_STATUS_SUCCESS;
  EXPECT_TRUE(Run(Call(16)).ok());
}

TEST_F(CublasLtGemmTest, AFailedProductIsNamed) {
  Start();
  lt_.failing_algorithms = {7};
  const absl::Status status = Run(Call(16));
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_NE(status.message().find("CUBLAS_STATUS_EXECUTION_FAILED"), std::string::npos) << status;
  EXPECT_NE(status.message().find("16 rows, n 96, k 64"), std::string::npos) << status;
}

TEST_F(CublasLtGemmTest, NothingToDo) {
  Start();
  EXPECT_TRUE(Run(Call(0)).ok());
  EXPECT_TRUE(Run(Call(5, 0)).ok());
  EXPECT_EQ(lt_.heuristics, 0);
  EXPECT_TRUE(lt_.products.empty());
}

TEST_F(CublasLtGemmTest, TheStrideOfOneRowSaysNothing) {
  Start();
  GemmCall call = Call(1);
  call.x.stride = call.y.stride = 0;
  ASSERT_TRUE(Run(call).ok());
  EXPECT_EQ(lt_.products[0].b.stride, 64);
  EXPECT_EQ(lt_.products[0].d.stride, 96);
}

TEST_F(CublasLtGemmTest, PlansAndChoicesAreBounded) {
  Start(2, 3);
  for (const int64_t n : {10, 20, 30, 40}) ASSERT_TRUE(Run(Call(16, n)).ok());
  EXPECT_EQ(lt_.heuristics, 4);
  EXPECT_LE(lt_.objects, 2 * 4) << "four objects describe a product";
  ASSERT_TRUE(Run(Call(16, 20)).ok());  // The key's plan is gone, the choice is not.
  EXPECT_EQ(lt_.heuristics, 4);
  ASSERT_TRUE(Run(Call(16, 10)).ok());
  EXPECT_EQ(lt_.heuristics, 5);
}

TEST_F(CublasLtGemmTest, TuneKeepsTheFastestForTheNeighbours) {
  Start();
  lt_.candidates = {{.algorithm = 1}, {.algorithm = 2}, {.algorithm = 3}, {.algorithm = 4}};
  milliseconds_ = {{1, 5.0}, {2, 0.1}, {3, 2.0}, {4, 3.0}};
  lt_.failing_algorithms = {2};  // The fastest cannot run.
  ASSERT_TRUE(Run(Call(112)).ok());
  EXPECT_EQ(lt_.products.back().algorithm, 1u) << "the library's first idea";
  GemmCall other = Call(112);
  other.w.data = At(0x70000);
  ASSERT_TRUE(gemm_->TuneOn(nullptr, {Call(112), other}).ok());
  for (const int64_t rows : {112, 100}) {
    ASSERT_TRUE(Run(Call(rows)).ok());
    EXPECT_EQ(lt_.products.back().algorithm, 3u) << rows;
  }
  ASSERT_TRUE(Run(Call(200)).ok());
  EXPECT_EQ(lt_.products.back().algorithm, 1u) << "another bucket was not measured";
}

TEST_F(CublasLtGemmTest, WhatWasMeasuredIsNotMeasuredAgain) {
  Start();
  ASSERT_TRUE(gemm_->TuneOn(nullptr, {Call(112)}).ok());
  const size_t products = lt_.products.size();
  EXPECT_EQ(lt_.heuristics, 1);
  ASSERT_TRUE(gemm_->TuneOn(nullptr, {Call(112)}).ok());
  ASSERT_TRUE(gemm_->TuneOn(nullptr, {Call(100)}).ok()) << "a neighbour";
  EXPECT_EQ(lt_.products.size(), products);
  EXPECT_EQ(lt_.heuristics, 1);
  EXPECT_EQ(gemm_->stats().measured, 1);
  ASSERT_TRUE(Run(Call(112)).ok());
  ASSERT_TRUE(Run(Call(97)).ok());
  EXPECT_EQ(gemm_->stats().unmeasured, 0) << "the choice is there";
  EXPECT_EQ(lt_.heuristics, 1);
  ASSERT_TRUE(gemm_->TuneOn(nullptr, {Call(112, 97)}).ok());
  EXPECT_EQ(gemm_->stats().measured, 2);
  ASSERT_TRUE(Run(Call(500)).ok());
  EXPECT_EQ(gemm_->stats().unmeasured, 1);
}

TEST_F(CublasLtGemmTest, TuneDoesNotLookLongAtWhatIsSlow) {
  Start();
  lt_.candidates = {{.algorithm = 1}, {.algorithm = 2}, {.algorithm = 3}};
  milliseconds_ = {{1, 1.0}, {2, 9.0}, {3, 1.2}};
  ASSERT_TRUE(gemm_->TuneOn(nullptr, {Call(112)}).ok());
  std::map<uint64_t, int> runs;
  for (const auto& product : lt_.products) ++runs[product.algorithm];
  EXPECT_EQ(runs[2], 2) << "once to load it, once by the clock";
  EXPECT_GT(runs[1], runs[2]);
  EXPECT_EQ(runs[3], runs[1]) << "near enough to be measured well";
}

// The workspace of the measured rows may be too small for other rows.
TEST_F(CublasLtGemmTest, AChoiceMeasuredAtOneSizeIsCheckedForTheOthers) {
  Start();
  ASSERT_TRUE(gemm_->TuneOn(nullptr, {Call(100)}).ok());
  EXPECT_EQ(lt_.checks, 0);
  ASSERT_TRUE(Run(Call(100)).ok());
  EXPECT_EQ(lt_.checks, 0);
  EXPECT_EQ(lt_.products.back().workspace_bytes, 1000u);
  ASSERT_TRUE(Run(Call(112)).ok());
  EXPECT_EQ(lt_.checks, 1);
  EXPECT_EQ(lt_.products.back().workspace_bytes, 500u);
}

TEST_F(CublasLtGemmTest, TuneMeasuresOneShape) {
  Start();
  EXPECT_TRUE(absl::IsInvalidArgument(gemm_->TuneOn(nullptr, {})));
  EXPECT_TRUE(absl::IsInvalidArgument(gemm_->TuneOn(nullptr, {Call(16), Call(17)})));
  EXPECT_TRUE(lt_.products.empty());
}

TEST_F(CublasLtGemmTest, ALibraryThatDoesNotStart) {
  lt_.create_status = CUBLAS_STATUS_NOT_INITIALIZED;
  const auto gemm = CublasLtGemm::Create(lt_.api(), {}, nullptr);
  ASSERT_FALSE(gemm.ok());
  EXPECT_NE(gemm.status().message().find("starting cuBLASLt"), std::string::npos) << gemm.status();
}

TEST(CublasLtApi, WhatIsMissingIsNamed) {
  const auto none = CublasLtApi::Open({"libsomnus_no_such.so.1", "libsomnus_neither.so.2"});
  EXPECT_TRUE(absl::IsUnavailable(none.status())) << none.status();
  EXPECT_NE(none.status().message().find("libsomnus_no_such.so.1"), std::string::npos) << none.status();
  EXPECT_NE(none.status().message().find("libsomnus_neither.so.2"), std::string::npos) << none.status();
  const auto other = CublasLtApi::Open({"libm.so.6"});
  EXPECT_TRUE(absl::IsUnavailable(other.status())) << other.status();
  EXPECT_NE(other.status().message().find("cublasLtCreate"), std::string::npos) << other.status();
}

TEST(CublasLtApi, TheRealOneHasAllEntryPoints) {
  const auto api = CublasLtApi::Load();
  if (!api.ok()) {
    EXPECT_TRUE(absl::IsUnavailable(api.status()));
    GTEST_SKIP() << api.status();
  }
  EXPECT_GE((*api)->cublasLtGetVersion_fn(), 120000u);
  EXPECT_STREQ((*api)->cublasLtGetStatusName_fn(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
}

}  // namespace
}  // namespace somnus::cuda_device
