#include "worker/model/weight_loader.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/status_macros.h"
#include "worker/model/quantize_rows.h"
#include "worker/model/weight_upload.h"

namespace somnus {
namespace {

constexpr int64_t kPanel = 64;  // PackWeightRows may run in parallel on ranges cut at multiples of this
// f32 scratch of one job: small enough to stay in a core's L2 between reading and packing.
constexpr int64_t kScratchFloats = 128 * 1024;

// A job: rows of one packed matrix, or a part of a vector.
struct Job {
  const WeightPlan::Matrix* matrix = nullptr;
  Range rows;
  const WeightSource* part = nullptr;  // of a vector; its elements go to `to`
  float* to = nullptr;
  int64_t bytes = 0;
};

// Cuts rows into jobs. Jobs side by side meet at multiples of kPanel.
void AddMatrixJobs(const WeightPlan::Matrix& matrix, const Range& rows, std::vector<Job>* jobs) {
  const LinearWeight& weight = *matrix.target;
  const int64_t rows_per_job = std::max(kPanel, kScratchFloats / weight.k / kPanel * kPanel);
  for (int64_t row = rows.begin; row < rows.end;) {
    const int64_t end = std::min(rows.end, row / kPanel * kPanel + rows_per_job);
    jobs->push_back({.matrix = &matrix,
                     .rows = {row, end},
                     .bytes = (end - row) * MatrixRowBytes(weight.dtype, weight.k)});
    row = end;
  }
}

// Adds jobs for one tensor's part of the vector, or, without a tensor, for all parts.
void AddVectorJobs(const WeightPlan::Vector& vector, const TensorInfo* tensor, std::vector<Job>* jobs) {
  // The memory is ours to write: Bind pointed the target into the region.
  float* to = const_cast<float*>(*vector.target);
  for (const WeightSource& source : vector.sources) {
    const int64_t count = source.rows.size() * source.cols.size();
    if (count > 0 && (tensor == nullptr || source.tensor == tensor))
      jobs->push_back({.part = &source, .to = to, .bytes = count * static_cast<int64_t>(sizeof(float))});
    to += count;
  }
}

std::vector<Job> MakeJobs(const WeightPlan& plan, bool matrices) {
  std::vector<Job> jobs;
  for (const WeightPlan::Matrix& matrix : plan.matrices()) {
    if (matrices || IsQuantized(matrix.target->dtype)) AddMatrixJobs(matrix, {0, matrix.target->n}, &jobs);
  }
  for (const WeightPlan::Vector& vector : plan.vectors()) AddVectorJobs(vector, nullptr, &jobs);
  return jobs;
}

absl::Status LoadVectorPart(const Checkpoint& checkpoint, const Device& device, const Job& job,
                            float* scratch) {
  const WeightSource& source = *job.part;
  RETURN_IF_ERROR(checkpoint.ReadRows(*source.tensor, source.rows.begin, source.rows.end, source.cols.begin,
                                      source.cols.end, scratch));
  PackVector(device, job.to, scratch, job.bytes / static_cast<int64_t>(sizeof(float)));
  return absl::OkStatus();
}

// Calls read(source, row_begin, row_end, row) for each source that has rows of the job: rows of the source's
// tensor, which become the job's rows from `row` on.
template <typename Read>
absl::Status ReadSources(const Job& job, const Read& read) {
  int64_t source_begin = 0;  // row of the fused matrix where the source starts
  for (const WeightSource& source : job.matrix->sources) {
    const int64_t begin = std::max(job.rows.begin, source_begin);
    const int64_t end = std::min(job.rows.end, source_begin + source.rows.size());
    if (begin < end) {
      const int64_t shift = source.rows.begin - source_begin;
      RETURN_IF_ERROR(read(source, begin + shift, end + shift, begin - job.rows.begin));
    }
    source_begin += source.rows.size();
  }
  return absl::OkStatus();
}

absl::Status LoadMatrixRows(const Checkpoint& checkpoint, const Device& device, const Job& job,
                            float* scratch) {
  const LinearWeight& weight = *job.matrix->target;
  RETURN_IF_ERROR(ReadSources(job, [&](const WeightSource& source, int64_t begin, int64_t end, int64_t row) {
    return checkpoint.ReadRows(*source.tensor, begin, end, source.cols.begin, source.cols.end,
                               scratch + row * weight.k);
  }));
  PackWeightRows(device, weight, job.rows.begin, job.rows.size(), scratch);
  return absl::OkStatus();
}

// Reads rows of a source that is a part of each row of the tensor, as blocks of fp8.
absl::Status ReadFloat8Parts(const Checkpoint& checkpoint, const WeightSource& source, int64_t row_begin,
                             int64_t row_end, uint8_t* to) {
  const TensorInfo& tensor = *source.tensor;
  std::vector<float> whole(static_cast<size_t>(tensor.shape[1]));
  for (int64_t row = row_begin; row < row_end; ++row) {
    RETURN_IF_ERROR(checkpoint.ReadRows(tensor, row, row + 1, 0, tensor.shape[1], whole.data()));
    QuantizeFloat8Part(whole.data(), tensor.shape[1], source.cols.begin, source.cols.end, to);
    to += MatrixRowBytes(DataType::kF8E4M3, source.cols.size());
  }
  return absl::OkStatus();
}

// Reads rows of one source as blocks of the weight's type: as stored where the stored type is the weight's,
// and else quantized here. A block has fewer bytes than its values as f32, so both fit the rows' place in the
// scratch.
absl::Status ReadBlocks(const Checkpoint& checkpoint, const WeightSource& source, int64_t row_begin,
                        int64_t row_end, DataType type, float* scratch, uint8_t* to) {
  const TensorInfo& tensor = *source.tensor;
  const Range& cols = source.cols;
  if (!checkpoint.is_dummy() && TakesStoredBlocks(source, type))
    return checkpoint.ReadStoredRows(tensor, row_begin, row_end, cols.begin, cols.end, to);
  if (type == DataType::kF8E4M3 && cols.size() != tensor.shape[1])
    return ReadFloat8Parts(checkpoint, source, row_begin, row_end, to);
  RETURN_IF_ERROR(checkpoint.ReadRows(tensor, row_begin, row_end, cols.begin, cols.end, scratch));
  QuantizeRows(type, scratch, row_end - row_begin, cols.size(), to);
  return absl::OkStatus();
}

// Loads the rows of a quantized weight. Sources are read in the order of their rows, and blocks are written
// at or before the place of the same rows' values.
absl::Status LoadQuantizedRows(const Checkpoint& checkpoint, const Device& device, const Job& job,
                               float* scratch) {
  const LinearWeight& weight = *job.matrix->target;
  const int64_t row_bytes = MatrixRowBytes(weight.dtype, weight.k);
  auto* const blocks = reinterpret_cast<uint8_t*>(scratch);
  RETURN_IF_ERROR(ReadSources(job, [&](const WeightSource& source, int64_t begin, int64_t end, int64_t row) {
    return ReadBlocks(checkpoint, source, begin, end, weight.dtype, scratch + row * weight.k,
                      blocks + row * row_bytes);
  }));
  PackQuantizedRows(device, weight, job.rows.begin, job.rows.size(), blocks);
  return absl::OkStatus();
}

absl::Status RunJob(const Checkpoint& checkpoint, const Device& device, const Job& job,
                    std::vector<float>* scratch) {
  const int64_t floats = job.part != nullptr ? job.bytes / static_cast<int64_t>(sizeof(float))
                                             : job.rows.size() * job.matrix->target->k;
  scratch->resize(std::max<size_t>(scratch->size(), floats));
  if (job.part != nullptr) return LoadVectorPart(checkpoint, device, job, scratch->data());
  if (!IsQuantized(job.matrix->target->dtype))
    return LoadMatrixRows(checkpoint, device, job, scratch->data());
  return LoadQuantizedRows(checkpoint, device, job, scratch->data());
}

// Fills the matrices of a dummy checkpoint, except quantized matrices, which are read. The range of the
// numbers keeps the magnitude of a product's input.
void FillMatricesRandomly(const WeightPlan& plan, Device& device) {
  uint64_t seed = 0;
  for (const WeightPlan::Matrix& matrix : plan.matrices()) {
    const LinearWeight& weight = *matrix.target;
    ++seed;
    if (IsQuantized(weight.dtype)) continue;
    const int64_t count = PackedWeightBytes(device, weight.dtype, weight.n, weight.k) / SizeOf(weight.dtype);
    FillRandom(device, weight.data, weight.dtype, count, seed,
               std::sqrt(3.0f / static_cast<float>(weight.k)));
  }
}

// The pieces of one tensor, or, without a tensor, of all.
std::vector<UploadPiece> MakePieces(const WeightPlan& plan, bool matrices, const TensorInfo* tensor,
                                    int64_t max_bytes) {
  std::vector<UploadPiece> pieces;
  const auto stack = [&](const std::vector<WeightSource>& sources, DataType dtype, void* to) {
    UploadPiece whole{.dtype = dtype, .to = static_cast<uint8_t*>(to)};
    for (const WeightSource& source : sources) {
      whole.tensor = source.tensor;
      whole.rows = source.rows;
      whole.cols = source.cols;
      if (tensor == nullptr || source.tensor == tensor) CutIntoPieces(whole, max_bytes, &pieces);
      whole.to += whole.bytes();
    }
  };
  for (const WeightPlan::Matrix& matrix : plan.matrices()) {
    if (matrices) stack(matrix.sources, matrix.target->dtype, matrix.target->data);
  }
  // The memory is ours to write: Bind pointed the targets into the region.
  for (const WeightPlan::Vector& vector : plan.vectors())
    stack(vector.sources, DataType::kF32, const_cast<float*>(*vector.target));
  return pieces;
}

absl::Status RunJobs(const Checkpoint& checkpoint, const Device& device, const std::vector<Job>& jobs,
                     const LoadProgress& progress) {
  int64_t total = 0;
  for (const Job& job : jobs) total += job.bytes;
  ProgressMeter meter(progress, total);
  RETURN_IF_ERROR(RunLoadJobs(jobs.size(), NumLoadThreads(), [&](size_t i, std::vector<float>* scratch) {
    const absl::Status status = RunJob(checkpoint, device, jobs[i], scratch);
    if (status.ok()) meter.Add(jobs[i].bytes);
    return status;
  }));
  meter.Finish();
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadWeights(const WeightPlan& plan, const Checkpoint& checkpoint, Device& device,
                         const LoadProgress& progress) {
  const bool matrices = !checkpoint.is_dummy();
  if (!matrices) FillMatricesRandomly(plan, device);
  if (DeviceUploader* const uploader = device.uploader(); uploader != nullptr) {
    return UploadPieces(checkpoint, MakePieces(plan, matrices, nullptr, uploader->buffer_bytes()), *uploader,
                        NumLoadThreads(), progress);
  }
  return RunJobs(checkpoint, device, MakeJobs(plan, matrices), progress);
}

absl::Status LoadTensor(const WeightPlan& plan, const Checkpoint& checkpoint, const TensorInfo& tensor,
                        Device& device) {
  if (DeviceUploader* const uploader = device.uploader(); uploader != nullptr) {
    return UploadPieces(checkpoint, MakePieces(plan, true, &tensor, uploader->buffer_bytes()), *uploader,
                        NumLoadThreads(), nullptr);
  }
  std::vector<Job> jobs;
  for (const WeightPlan::Matrix& matrix : plan.matrices()) {
    int64_t begin = 0;  // row of the fused matrix where the source starts
    for (const WeightSource& source : matrix.sources) {
      const Range rows = {begin, begin + source.rows.size()};
      if (source.tensor == &tensor) AddMatrixJobs(matrix, rows, &jobs);
      begin = rows.end;
    }
  }
  for (const WeightPlan::Vector& vector : plan.vectors()) AddVectorJobs(vector, &tensor, &jobs);
  return RunJobs(checkpoint, device, jobs, nullptr);
}

}  // namespace somnus
