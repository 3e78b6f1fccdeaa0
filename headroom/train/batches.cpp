#include "headroom/train/batches.h"

namespace headroom::internal {

Batches::Batches(Tensors sample, std::optional<std::string> text, uint64_t seed)
    : sample_(std::move(sample)), text_(std::move(text)), random_(seed) {
  HEADROOM_ASSERT(!text_ || text_->size() > static_cast<size_t>(sample_[0].size(1)));
  if (text_) sample_ = next();
}

Tensors Batches::next() {
  if (!text_) return sample_;
  const auto tokens = static_cast<size_t>(sample_[0].size(1));
  const torch::Tensor words = torch::empty({sample_[0].size(0), sample_[0].size(1) + 1}, torch::kLong);
  auto* word = words.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < words.size(0); ++i) {
    // Not a distribution of the standard library, whose numbers differ from one library to the next.
    const size_t begin = random_() % (text_->size() - tokens);
    for (size_t k = 0; k <= tokens; ++k) *word++ = static_cast<unsigned char>((*text_)[begin + k]);
  }
  const torch::Device device = sample_[0].device();
  return {words.slice(1, 0, sample_[0].size(1)).contiguous().to(device), words.slice(1, 1).contiguous().to(device)};
}

}  // namespace headroom::internal
