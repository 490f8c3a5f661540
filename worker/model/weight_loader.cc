// Fills the weights region. Where ops run at once: reads rows as f32 and packs them, panel ranges in
// parallel; asynchronous devices: by weight_upload.h.

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "worker/model/weights.h"

namespace somnus {
namespace {

constexpr int64_t kPanel = 64;  // PackWeightRows may run in parallel on ranges cut at multiples of this
// f32 scratch of one job: small enough to stay in a core's L2 between reading and packing.
constexpr int64_t kScratchFloats = 128 * 1024;

}  // namespace

// Rows of one packed matrix, or one whole vector.
struct WeightPlan::Job {
  const Matrix* matrix = nullptr;
  const Vector* vector = nullptr;
  Range rows;
  int64_t bytes = 0;
};

std::vector<WeightPlan::Job> WeightPlan::MakeJobs(bool matrices) const {
  std::vector<Job> jobs;
  for (const Matrix& matrix : matrices_) {
    if (!matrices) break;
    const LinearWeight& weight = *matrix.target;
    const int64_t rows_per_job = std::max(kPanel, kScratchFloats / weight.k / kPanel * kPanel);
    for (int64_t row = 0; row < weight.n; row += rows_per_job) {
      const Range rows = {row, std::min(weight.n, row + rows_per_job)};
      jobs.push_back({&matrix, nullptr, rows, rows.size() * weight.k * SizeOf(weight.dtype)});
    }
  }
  for (const Vector& vector : vectors_) {
    Job job{nullptr, &vector, {}, 0};
    for (const WeightSource& source : vector.sources)
      job.bytes += source.rows.size() * source.cols.size() * 4;
    jobs.push_back(job);
  }
  return jobs;
}

absl::Status WeightPlan::RunJob(const Checkpoint& checkpoint, const Device& device, const Job& job,
                                std::vector<float>* scratch) const {
  if (job.vector != nullptr) {
    scratch->resize(std::max<size_t>(scratch->size(), job.bytes / sizeof(float)));
    float* out = scratch->data();
    for (const WeightSource& source : job.vector->sources) {
      if (source.rows.empty()) continue;
      RETURN_IF_ERROR(checkpoint.ReadRows(*source.tensor, source.rows.begin, source.rows.end,
                                          source.cols.begin, source.cols.end, out));
      out += source.rows.size() * source.cols.size();
    }
    float* const data = const_cast<float*>(*job.vector->target);  // ours: Bind pointed it into the region
    PackVector(device, data, scratch->data(), out - scratch->data());
    return absl::OkStatus();
  }
  const LinearWeight& weight = *job.matrix->target;
  scratch->resize(std::max<size_t>(scratch->size(), job.rows.size() * weight.k));
  int64_t source_begin = 0;  // row of the fused matrix where the source starts
  for (const WeightSource& source : job.matrix->sources) {
    const int64_t begin = std::max(job.rows.begin, source_begin);
    const int64_t end = std::min(job.rows.end, source_begin + source.rows.size());
    if (begin < end) {
      const int64_t shift = source.rows.begin - source_begin;
      RETURN_IF_ERROR(checkpoint.ReadRows(*source.tensor, begin + shift, end + shift, source.cols.begin,
                                          source.cols.end,
                                          scratch->data() + (begin - job.rows.begin) * weight.k));
    }
    source_begin += source.rows.size();
  }
  PackWeightRows(device, weight, job.rows.begin, job.rows.size(), scratch->data());
  return absl::OkStatus();
}

// Numbers that keep the size of what they multiply.
void WeightPlan::FillMatricesRandomly(Device& device) const {
  uint64_t seed = 0;
  for (const Matrix& matrix : matrices_) {
    const LinearWeight& weight = *matrix.target;
    const int64_t count = PackedWeightBytes(device, weight.dtype, weight.n, weight.k) / SizeOf(weight.dtype);
    FillRandom(device, weight.data, weight.dtype, count, ++seed,
               std::sqrt(3.0f / static_cast<float>(weight.k)));
  }
}

std::vector<UploadPiece> WeightPlan::MakePieces(bool matrices, int64_t max_bytes) const {
  std::vector<UploadPiece> pieces;
  const auto stack = [&](const std::vector<WeightSource>& sources, DataType dtype, void* to) {
    UploadPiece whole{.dtype = dtype, .to = static_cast<uint8_t*>(to)};
    for (const WeightSource& source : sources) {
      whole.tensor = source.tensor;
      whole.rows = source.rows;
      whole.cols = source.cols;
      CutIntoPieces(whole, max_bytes, &pieces);
      whole.to += whole.bytes();
    }
  };
  for (const Matrix& matrix : matrices_) {
    if (matrices) stack(matrix.sources, matrix.target->dtype, matrix.target->data);
  }
  // Ours: Bind pointed them into the region.
  for (const Vector& vector : vectors_)
    stack(vector.sources, DataType::kF32, const_cast<float*>(*vector.target));
  return pieces;
}

absl::Status WeightPlan::Fill(const Checkpoint& checkpoint, Device& device, const Progress& progress) const {
  if (checkpoint.is_dummy()) FillMatricesRandomly(device);
  if (DeviceUploader* const uploader = device.uploader(); uploader != nullptr) {
    return UploadPieces(checkpoint, MakePieces(!checkpoint.is_dummy(), uploader->buffer_bytes()), *uploader,
                        progress);
  }
  const std::vector<Job> jobs = MakeJobs(!checkpoint.is_dummy());
  int64_t total = 0;
  for (const Job& job : jobs) total += job.bytes;
  ProgressMeter meter(progress, total);
  RETURN_IF_ERROR(RunLoadJobs(jobs.size(), [&](size_t i, std::vector<float>* scratch) {
    const absl::Status status = RunJob(checkpoint, device, jobs[i], scratch);
    if (status.ok()) meter.Add(jobs[i].bytes);
    return status;
  }));
  meter.Finish();
  return absl::OkStatus();
}

}  // namespace somnus
