"""LMDB's data file, read and checked without LMDB.

The one format known is that of LMDB 0.9 on machines with 64 bits and little-endian numbers: magic
0xBEEFC0DE, data version 1, pages of a power of two from 512 bytes to 64 KiB, one unnamed table, no duplicate
values. Another magic or version is a `PageFault`, and the file is left alone.

pages       trees of pages, and the check before a store is opened
cursor      values in order, each page read by a call
salvage     a new file of all values that can still be read
"""
