#include "worker/runner/row_masks.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace somnus {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "masks are sent with the lowest byte first");

absl::Status RowMasks::Set(const v1::StepMasks& masks, absl::Span<const LogitRow> rows, int32_t vocab_size) {
  const int64_t words = (static_cast<int64_t>(vocab_size) + 31) / 32;
  const auto mask_bytes = static_cast<size_t>(words) * sizeof(uint32_t);
  words_.clear();
  starts_.assign(rows.size(), -1);
  for (const v1::SlotMask& mask : masks.masks()) {
    size_t row = 0;
    while (row < rows.size() && rows[row].slot != mask.slot()) ++row;
    if (row == rows.size())
      return absl::InvalidArgumentError(absl::StrCat("masks: slot ", mask.slot(), " samples no token"));
    for (size_t at = 0; at < mask.allowed().size(); at += mask_bytes, ++row) {
      if (mask.allowed().size() - at < mask_bytes || row == rows.size() || rows[row].slot != mask.slot()) {
        return absl::InvalidArgumentError(absl::StrCat("masks: slot ", mask.slot(), " has ",
                                                       mask.allowed().size(), " bytes, where each token has ",
                                                       mask_bytes));
      }
      starts_[row] = static_cast<int64_t>(words_.size());
      words_.resize(words_.size() + words);
      std::memcpy(words_.data() + starts_[row], mask.allowed().data() + at, mask_bytes);
    }
  }
  return absl::OkStatus();
}

void RowMasks::Intersect(size_t row, absl::Span<uint32_t> mask) const {
  const uint32_t* const own = words_.data() + starts_[row];
  for (size_t i = 0; i < mask.size(); ++i) mask[i] &= own[i];
}

}  // namespace somnus
