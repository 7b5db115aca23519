module berth/interop

go 1.25.0
