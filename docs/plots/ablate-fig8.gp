set encoding utf8
set terminal svg size 800,500 fixed noenhanced font "DejaVu Sans,Helvetica,Arial,sans-serif,15" background "#ffffff" linewidth 1.2
set border 3 lc rgb "#444444"
set grid ytics lc rgb "#dddddd" lt 1 lw 0.7
set tics nomirror scale 0.5 textcolor rgb "#000000"
set style fill solid 0.85 noborder
set title "Speed, by what the shadow is told"
set ylabel "tokens/s, median and quartiles"
set xlabel "\n" . " "
set key off
set autoscale xfix
set xrange [-0.6:5.6]
set yrange [0:*]
set xtics nomirror scale 0.5 ("1\ntoken and KV" 0, "2\ntoken only" 1, "3\nKV only" 2, "4\nneither" 3, "5\nrandom" 4, "6\nno prediction" 5)
$series0 << END
0 25.3921986 24.8922714 25.8342738 
1 24.7468931 23.7923988 25.8466701 
2 18.1746628 16.2684771 21.123078 
3 13.0607935 12.8590221 14.0584869 
4 12.2535924 12.2024898 12.3578367 
5 12.2675832 12.0993365 12.3618015 
END
plot \
	$series0 using ($1 + 0.000000):2:(0.736000) with boxes lc rgb "#0072B2" notitle, \
	$series0 using ($1 + 0.000000):3:(0):($4 - $3) with vectors heads size screen 0.005,90 nofilled lw 1.2 lc rgb "#222222" notitle
