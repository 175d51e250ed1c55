// A fixed team of threads that run one function together, and the barrier between its phases.
//
// A forward pass has hundreds of phases of tens of microseconds: waking a thread for each would cost more than the
// phase. So the team spins inside a pass, and sleeps between passes after a while. Where a thread is preempted (more
// work than cores), spinning gives way to sched_yield, so that the thread it waits for can run.
#pragma once

#include <immintrin.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace pagoda {

inline constexpr int kSpinsBeforeYield = 2000;   // some 30 us: longer than any phase is uneven
inline constexpr int kYieldsBeforeSleep = 2000;  // then a waiting thread sleeps until it is called

class Team {
 public:
  using Work = void (*)(void* context, int thread);

  explicit Team(int threads) : threads_(threads) {
    for (int thread = 1; thread < threads; ++thread) {
      workers_.emplace_back([this, thread] { serve(thread); });
    }
  }

  ~Team() {
    stopping_ = true;
    call();
    for (auto& worker : workers_) worker.join();
  }

  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }

  // Runs work(context, 0) here and work(context, i) on every other thread; returns when all have ended.
  void run(Work work, void* context) {
    work_ = work;
    context_ = context;
    call();
    work(context, 0);
    barrier();
  }

  // Waits until every thread of the team is here. What they wrote before is visible to all after.
  void barrier() {
    const uint32_t turn = turn_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; turn_.load(std::memory_order_acquire) == turn; ++spins) {
      if (spins < kSpinsBeforeYield) {
        _mm_pause();
      } else {
        sched_yield();
      }
    }
  }

 private:
  void call() {
    calls_.fetch_add(1, std::memory_order_release);
    calls_.notify_all();
  }

  void serve(int thread) {
    uint32_t seen = 0;
    for (;;) {
      int spins = 0;
      while (calls_.load(std::memory_order_acquire) == seen) {
        if (++spins < kSpinsBeforeYield) {
          _mm_pause();
        } else if (spins < kSpinsBeforeYield + kYieldsBeforeSleep) {
          sched_yield();
        } else {
          calls_.wait(seen, std::memory_order_acquire);
        }
      }
      seen = calls_.load(std::memory_order_acquire);
      if (stopping_) return;
      work_(context_, thread);
      barrier();
    }
  }

  const int threads_;
  std::vector<std::thread> workers_;
  Work work_ = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<uint32_t> calls_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> turn_{0};
};

// Hands out 0..count-1 in runs to whoever asks: a thread that is slowed by a neighbour takes fewer.
class Shares {
 public:
  void open(int count, int run) {
    count_ = count;
    run_ = run < 1 ? 1 : run;
    next_.store(0, std::memory_order_relaxed);
  }

  // The next run as [begin, end); false when nothing is left.
  bool take(int& begin, int& end) {
    begin = next_.fetch_add(run_, std::memory_order_relaxed);
    if (begin >= count_) return false;
    end = begin + run_ < count_ ? begin + run_ : count_;
    return true;
  }

 private:
  int count_ = 0;
  int run_ = 1;
  alignas(64) std::atomic<int> next_{0};
};

}  // namespace pagoda
