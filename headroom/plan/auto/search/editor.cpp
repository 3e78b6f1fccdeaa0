#include "headroom/plan/auto/search/editor.h"

#include <algorithm>

namespace headroom::internal {

void RunEditor::assign(const std::vector<int32_t>& runs) {
  now_.assign(runs);
  work_ += now_.size();
}

void RunEditor::assign(const Timeline& timeline) {
  now_ = timeline;
  work_ += now_.size();
}

void RunEditor::try_runs(const std::vector<int32_t>& runs) {
  trial_.assign(runs);
  work_ += trial_.size();
}

std::vector<int32_t>& RunEditor::edited(const std::vector<Insertion>& insertions,
                                        const std::vector<int32_t>& erasures) {
  edited_.clear();
  const std::vector<int32_t>& runs = now_.runs();
  int32_t copied = 0;
  const auto copy_up_to = [&](int32_t end) {
    edited_.insert(edited_.end(), runs.begin() + copied, runs.begin() + end);
    copied = end;
  };
  auto gone = erasures.begin();
  const auto erase_up_to = [&](int32_t end) {
    for (; gone != erasures.end() && *gone < end; ++gone) {
      if (*gone < copied) continue;  // This position is in the list twice.
      copy_up_to(*gone);
      ++copied;
    }
  };
  for (const Insertion& insertion : insertions) {
    erase_up_to(insertion.before);
    copy_up_to(std::max(copied, insertion.before));
    edited_.push_back(insertion.op);
  }
  erase_up_to(now_.size());
  copy_up_to(now_.size());
  return edited_;
}

bool RunEditor::is_rerun(int32_t position) const {
  return std::ranges::any_of(flat_.outputs(now_.run(position)),
                             [&](int32_t w) { return now_.events(w).front().position < position; });
}

uint64_t RunEditor::random(uint64_t n) {
  random_state_ += 0x9E3779B97F4A7C15U;
  uint64_t x = random_state_;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return (x ^ (x >> 31U)) % n;
}

}  // namespace headroom::internal
