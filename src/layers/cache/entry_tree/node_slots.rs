//! A short list inside of a node, without an allocation of its own.

/// A list of at most `N` items.
#[derive(Clone)]
pub(super) struct NodeSlots<T, const N: usize> {
    len: usize,
    items: [Option<T>; N],
}

impl<T, const N: usize> Default for NodeSlots<T, N> {
    fn default() -> Self {
        Self {
            len: 0,
            items: [const { None }; N],
        }
    }
}

impl<T, const N: usize> NodeSlots<T, N> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == N
    }

    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.items.get(index)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.items.get_mut(index)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items[..self.len].iter().flatten()
    }

    /// Inserts an item. The list must not be full.
    pub(super) fn insert(&mut self, index: usize, item: T) {
        self.items[index..=self.len].rotate_right(1);
        self.items[index] = Some(item);
        self.len += 1;
    }

    /// Replaces an item and returns the old one.
    pub(super) fn replace(&mut self, index: usize, item: T) -> Option<T> {
        self.items[index].replace(item)
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<T> {
        let removed = self.items.get_mut(index)?.take()?;
        self.items[index..self.len].rotate_left(1);
        self.len -= 1;
        Some(removed)
    }

    /// Moves the items from an index on into a new list.
    pub(super) fn split_off(&mut self, index: usize) -> Self {
        let mut moved = Self::default();
        for item in &mut self.items[index..self.len] {
            moved.items[moved.len] = item.take();
            moved.len += 1;
        }
        self.len = index;
        moved
    }

    /// Appends all items of another list. Both together must fit.
    pub(super) fn append(&mut self, other: &mut Self) {
        for item in &mut other.items[..other.len] {
            self.items[self.len] = item.take();
            self.len += 1;
        }
        other.len = 0;
    }
}
